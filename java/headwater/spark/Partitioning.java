package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;

/** PARTITIONED BY, between Spark's transforms and what headwater/spark/partitions.py keeps with the table. */
final class Partitioning {
  static final Partitioning NONE = new Partitioning(Json.MAPPER.createArrayNode());

  private final JsonNode fields;

  Partitioning(JsonNode fields) {
    this.fields = fields;
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
