package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** PARTITIONED BY, between Spark's transforms and what headwater/spark/partitions.py keeps with the table. */
final class Partitioning {
  static final Partitioning NONE = new Partitioning(Json.MAPPER.createArrayNode());

  private static final Object UNKNOWN = new Object();

  private final JsonNode fields;

  Partitioning(JsonNode fields) {
    this.fields = fields;
  }

  /** One bucket of these columns, in which everything is. */
  static Partitioning ofOne(List<String> columns) {
    ArrayNode fields = Json.MAPPER.createArrayNode();
    columns.forEach(column -> fields.addObject().put("column", column).put("transform", "bucket").put("width", 1));
    return new Partitioning(fields);
  }

  /** The values of its one bucket. */
  ArrayNode first() {
    ArrayNode values = Json.MAPPER.createArrayNode();
    fields.forEach(field -> values.add(0));
    return values;
  }

  /** How it divides, whatever the columns are called. */
  List<String> shape() {
    List<String> all = new ArrayList<>();
    fields.forEach(field -> all.add(field.get("transform").asText() + field.get("width").asText()));
    return all;
  }

  static ArrayNode toJson(Transform[] transforms) {
    ArrayNode all = Json.MAPPER.createArrayNode();
    for (Transform transform : transforms) {
      NamedReference[] columns = transform.references();
      if (columns.length != 1 || columns[0].fieldNames().length != 1) {
        throw new UnsupportedOperationException(
            "A table cannot be PARTITIONED BY " + transform.describe() + ": name one top-level column.");
      }
      ObjectNode field = all.addObject().put("column", columns[0].fieldNames()[0]).put("transform", transform.name());
      for (Expression argument : transform.arguments()) {
        if (argument instanceof Literal<?> literal && literal.value() instanceof Number width) {
          field.put("width", width.longValue());
        }
      }
    }
    return all;
  }

  boolean isEmpty() {
    return fields.isEmpty();
  }

  Transform[] transforms() {
    List<Transform> all = new ArrayList<>();
    for (JsonNode field : fields) {
      String column = field.get("column").asText();
      String quoted = quoted(column);
      int width = field.get("width").asInt();
      String name = field.get("transform").asText();
      all.add(switch (name) {
        case "identity" -> Expressions.identity(quoted);
        case "bucket" -> Expressions.bucket(width, quoted);
        case "truncate" -> Expressions.apply(name, Expressions.literal(width), Expressions.column(quoted));
        default -> Expressions.apply(name, Expressions.column(quoted));
      });
    }
    return all.toArray(new Transform[0]);
  }

  /** The columns that partition values are made of, each once. */
  Set<String> columns() {
    Set<String> names = new LinkedHashSet<>();
    fields.forEach(field -> names.add(field.get("column").asText()));
    return names;
  }

  /** Those of them that are among the columns read. */
  NamedReference[] references(StructType read) {
    return columns().stream().filter(name -> read.getFieldIndex(name).isDefined())
        .map(name -> Expressions.column(quoted(name))).toArray(NamedReference[]::new);
  }

  /** Whether a scan of these columns can tell Spark its partitions: all are there, with values as Spark has them. */
  boolean canBeReported(StructType read) {
    for (JsonNode field : fields) {
      scala.Option<Object> index = read.getFieldIndex(field.get("column").asText());
      if (index.isEmpty() || value(field, read.fields()[(int) index.get()].dataType(), null) == UNKNOWN) {
        return false;
      }
    }
    return !isEmpty();
  }

  /** The values of a partition, as Spark's own expressions of the columns give them. */
  InternalRow key(JsonNode values, StructType read) {
    Object[] row = new Object[values.size()];
    for (int i = 0; i < row.length; i++) {
      JsonNode field = fields.get(i);
      row[i] = value(field, read.apply(field.get("column").asText()).dataType(), values.get(i));
    }
    return new GenericInternalRow(row);
  }

  private static Object value(JsonNode field, DataType type, JsonNode told) {
    boolean identity = field.get("transform").asText().equals("identity");
    boolean text = type instanceof StringType
        && (identity || field.get("transform").asText().equals("truncate"));
    boolean number = type instanceof ByteType || type instanceof ShortType || type instanceof IntegerType
        || type instanceof LongType;
    if (identity && !text && !number) {
      return UNKNOWN;
    }
    if (told == null || told.isNull()) {
      return null;
    }
    if (text) {
      return UTF8String.fromString(told.asText());
    }
    return !identity || type instanceof LongType ? (Object) told.asLong()
        : type instanceof IntegerType ? (Object) told.asInt()
        : type instanceof ShortType ? (Object) (short) told.asInt() : (Object) (byte) told.asInt();
  }

  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  /** Rows of a partition come to one task; Spark may divide a large one. */
  Distribution distribution() {
    return isEmpty() ? Distributions.unspecified() : Distributions.clustered(transforms());
  }

  SortOrder[] ordering() {
    List<SortOrder> orders = new ArrayList<>();
    for (Transform transform : transforms()) {
      Expression by = transform.name().equals("identity") ? transform.references()[0] : transform;
      orders.add(Expressions.sort(by, SortDirection.ASCENDING));
    }
    return orders.toArray(new SortOrder[0]);
  }
}
