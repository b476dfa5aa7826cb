package headwater.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Base64;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructType;

/** The keys that a join found while it runs, as headwater/tables/scan/parts.py reads them. */
final class JoinKeys {
  /** More keys than these cost more to send to every task than they save. */
  private static final int MOST = 500_000;

  private JoinKeys() {}

  /** Whether keys of a type are taken: whole numbers and dates, which have one form each. */
  static boolean takes(DataType type) {
    return type instanceof LongType || type instanceof IntegerType || type instanceof ShortType
        || type instanceof ByteType || type instanceof DateType;
  }

  /** The keys of all columns in JSON, or null if nothing is said of any. A NULL joins nothing, so it is no key. */
  static String json(StructType columns, Predicate[] predicates) {
    ArrayNode all = Json.MAPPER.createArrayNode();
    for (Predicate predicate : predicates) {
      Expression[] children = predicate.children();
      if (!predicate.name().equals("IN") || children.length > MOST
          || !(children[0] instanceof NamedReference reference) || reference.fieldNames().length != 1
          || columns.getFieldIndex(reference.fieldNames()[0]).isEmpty()
          || !takes(columns.apply(reference.fieldNames()[0]).dataType())) {
        continue;
      }
      String values = packed(children);
      if (values != null) {
        all.add(Json.object().put("column", reference.fieldNames()[0]).put("values", values));
      }
    }
    return all.isEmpty() ? null : all.toString();
  }

  private static String packed(Expression[] children) {
    ByteBuffer bytes = ByteBuffer.allocate(8 * children.length).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 1; i < children.length; i++) {
      if (!(children[i] instanceof Literal<?> literal)) {
        return null;
      }
      if (literal.value() instanceof Number number) {
        bytes.putLong(number.longValue());
      } else if (literal.value() != null) {
        return null;
      }
    }
    return Base64.getEncoder().encodeToString(Arrays.copyOf(bytes.array(), bytes.position()));
  }
}
