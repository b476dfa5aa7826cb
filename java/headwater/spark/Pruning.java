package headwater.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.AlwaysFalse;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/**
 * Predicates as trees for headwater/spark/prune.py, which skips the partitions they cannot match. What is not about a
 * partition column stays in the tree as "unknown".
 */
final class Pruning {
  private static final Set<String> KNOWN =
      Set.of("=", "<>", "<", "<=", ">", ">=", "<=>", "IN", "IS_NULL", "IS_NOT_NULL", "STARTS_WITH");

  private final Set<String> columns;
  private boolean useful;

  Pruning(Partitioning partitioning) {
    this.columns = partitioning.columns();
  }

  /** All of them in one, or null when none says anything of a partition. */
  static ObjectNode all(Partitioning partitioning, Predicate... predicates) {
    Pruning pruning = new Pruning(partitioning);
    ObjectNode tree = Json.object().put("op", "AND");
    ArrayNode arguments = tree.putArray("args");
    for (Predicate predicate : predicates) {
      arguments.add(pruning.tree(predicate));
    }
    return pruning.useful ? tree : null;
  }

  static ObjectNode both(ObjectNode one, ObjectNode other) {
    if (one == null || other == null) {
      return one == null ? other : one;
    }
    ObjectNode tree = Json.object().put("op", "AND");
    tree.putArray("args").add(one).add(other);
    return tree;
  }

  private ObjectNode tree(Expression expression) {
    if (expression instanceof AlwaysTrue || expression instanceof AlwaysFalse) {
      useful |= expression instanceof AlwaysFalse;
      return Json.object().put("op", expression instanceof AlwaysTrue ? "true" : "false");
    }
    if (expression instanceof GeneralScalarExpression general) {
      ObjectNode tree = Json.object().put("op", general.name());
      ArrayNode arguments = tree.putArray("args");
      switch (general.name()) {
        case "AND", "OR", "NOT" -> {
          for (Expression child : general.children()) {
            arguments.add(tree(child));
          }
          return tree;
        }
        default -> {
          if (KNOWN.contains(general.name()) && operands(general.children(), arguments)) {
            useful = true;
            return tree;
          }
        }
      }
    }
    return Json.object().put("op", "unknown");
  }

  private boolean operands(Expression[] children, ArrayNode arguments) {
    boolean column = false;
    for (Expression child : children) {
      ObjectNode operand = Json.object();
      if (child instanceof NamedReference reference) {
        if (reference.fieldNames().length != 1 || !columns.contains(reference.fieldNames()[0])) {
          return false;
        }
        operand.put("column", reference.fieldNames()[0]);
        column = true;
      } else if (!(child instanceof Literal<?> literal && literal(literal, operand))) {
        return false;
      }
      arguments.add(operand);
    }
    return column;
  }

  private static boolean literal(Literal<?> literal, ObjectNode operand) {
    Object value = literal.value();
    DataType type = literal.dataType();
    if (value == null) {
      return false;
    }
    if (type instanceof BooleanType) {
      operand.put("literal", (Boolean) value);
    } else if (type.equals(DataTypes.StringType)) {
      operand.put("literal", value.toString());
      return value.toString().indexOf('\uFFFD') < 0; // bytes that are no text
    } else if (type instanceof DecimalType) {
      operand.put("literal", value.toString()).put("decimal", true);
    } else if (type instanceof ByteType || type instanceof ShortType || type instanceof IntegerType
        || type instanceof LongType || type instanceof DateType || type instanceof TimestampType
        || type instanceof TimestampNTZType) {
      operand.put("literal", ((Number) value).longValue());
    } else {
      return false;
    }
    return true;
  }
}
