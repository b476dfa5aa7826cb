package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
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
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/**
 * Spark's predicates in Lance's SQL. Only what both sides answer alike is translated, so that Spark need not filter
 * again; null stands for "cannot be said".
 */
final class Predicates {
  private static final Set<String> COMPARISONS = Set.of("=", "<>", "<", "<=", ">", ">=");
  private static final DateTimeFormatter MICROS = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS");
  private static final long YEAR_1 = -62135596800L;
  private static final long YEAR_10000 = 253402300800L;

  private final JsonNode filterable;

  /** filterable: column path to kind, as headwater/spark/catalog.py tells it. */
  Predicates(JsonNode filterable) {
    this.filterable = filterable;
  }

  /** All of them in one, or null if any cannot be said. No predicate is `true`. */
  String all(Predicate[] predicates) {
    List<String> parts = new ArrayList<>();
    for (Predicate predicate : predicates) {
      String sql = sql(predicate);
      if (sql == null) {
        return null;
      }
      parts.add(sql);
    }
    return parts.isEmpty() ? "true" : String.join(" AND ", parts);
  }

  /** A predicate or value in parentheses where it needs them, or null. */
  String sql(Expression expression) {
    if (expression instanceof AlwaysTrue) {
      return "true";
    }
    if (expression instanceof AlwaysFalse) {
      return "false";
    }
    if (expression instanceof NamedReference reference) {
      return column(reference);
    }
    if (expression instanceof Literal<?> literal) {
      return literal(literal);
    }
    if (expression instanceof GeneralScalarExpression general) {
      return general(general.name(), general.children());
    }
    return null;
  }

  private String general(String name, Expression[] children) {
    if (COMPARISONS.contains(name)) {
      return comparable(children) ? binary(name, children) : null;
    }
    return switch (name) {
      case "AND", "OR", "%" -> name.equals("%") && !isWhole(children) ? null : binary(name, children);
      case "<=>" -> comparable(children) ? binary("IS NOT DISTINCT FROM", children) : null;
      case "NOT" -> wrapped("(NOT ", children, ")");
      case "IS_NULL" -> wrapped("(", children, " IS NULL)");
      case "IS_NOT_NULL" -> wrapped("(", children, " IS NOT NULL)");
      case "IN" -> comparable(children) ? in(children) : null;
      case "LIKE" -> binary(name, children);
      case "STARTS_WITH" -> wrapped("starts_with(", children, ")");
      case "ENDS_WITH" -> wrapped("ends_with(", children, ")");
      case "CONTAINS" -> wrapped("contains(", children, ")");
      case "LOWER" -> wrapped("lower(", children, ")");
      case "UPPER" -> wrapped("upper(", children, ")");
      case "CHAR_LENGTH" -> wrapped("char_length(", children, ")");
      case "COALESCE" -> wrapped("coalesce(", children, ")");
      default -> null;
    };
  }

  private String binary(String operator, Expression[] children) {
    String left = sql(children[0]);
    String right = sql(children[1]);
    return left == null || right == null ? null : "(" + left + " " + operator + " " + right + ")";
  }

  private String wrapped(String before, Expression[] children, String after) {
    List<String> parts = new ArrayList<>();
    for (Expression child : children) {
      String sql = sql(child);
      if (sql == null) {
        return null;
      }
      parts.add(sql);
    }
    return before + String.join(", ", parts) + after;
  }

  private String in(Expression[] children) {
    String value = sql(children[0]);
    if (value == null || children.length == 1) {
      return null;
    }
    StringBuilder text = new StringBuilder("(").append(value).append(" IN (");
    for (int i = 1; i < children.length; i++) {
      String item = sql(children[i]);
      if (item == null) {
        return null;
      }
      text.append(i == 1 ? "" : ", ").append(item);
    }
    return text.append("))").toString();
  }

  /** Floats are equal to their negative zero in Spark and not in Arrow: such comparisons stay with Spark. */
  private boolean comparable(Expression[] children) {
    boolean floats = false;
    boolean literal = false;
    for (Expression child : children) {
      if (child instanceof NamedReference reference) {
        floats |= "float".equals(kind(reference));
      } else if (child instanceof Literal<?> value) {
        literal = true;
        if (value.value() instanceof Number number && isFloat(value.dataType())) {
          double d = number.doubleValue();
          if (d == 0 || Double.isNaN(d) || Double.isInfinite(d)) {
            return false;
          }
        }
      }
    }
    return !floats || literal;
  }

  private boolean isWhole(Expression[] children) {
    return children[0] instanceof NamedReference reference && "integer".equals(kind(reference))
        && children[1] instanceof Literal<?> literal && literal.value() instanceof Number number
        && !isFloat(literal.dataType()) && number.longValue() != 0;
  }

  private static boolean isFloat(DataType type) {
    return type instanceof FloatType || type instanceof DoubleType;
  }

  private String kind(NamedReference reference) {
    JsonNode kind = filterable.get(String.join(".", reference.fieldNames()));
    return kind == null ? null : kind.asText();
  }

  private String column(NamedReference reference) {
    return kind(reference) == null ? null : "`" + String.join("`.`", reference.fieldNames()) + "`";
  }

  private static String literal(Literal<?> literal) {
    Object value = literal.value();
    DataType type = literal.dataType();
    if (value == null) {
      return null;
    }
    if (type instanceof StringType) {
      return "'" + value.toString().replace("'", "''") + "'";
    }
    if (type instanceof BooleanType || type instanceof ByteType || type instanceof ShortType
        || type instanceof IntegerType || type instanceof LongType) {
      return value.toString();
    }
    if (isFloat(type)) {
      double number = ((Number) value).doubleValue();
      String cast = type instanceof FloatType ? "Float32" : "Float64";
      return "arrow_cast('" + (type instanceof FloatType ? value.toString() : Double.toString(number)) + "', '" + cast + "')";
    }
    if (type instanceof DecimalType decimal) {
      String digits = ((Decimal) value).toJavaBigDecimal().toPlainString(); // Lance reads no exponents
      return "CAST('" + digits + "' AS DECIMAL(" + decimal.precision() + "," + decimal.scale() + "))";
    }
    if (type instanceof DateType) {
      LocalDate date = LocalDate.ofEpochDay(((Number) value).longValue());
      return date.getYear() < 1 || date.getYear() > 9999 ? null : "date '" + date + "'";
    }
    return type instanceof TimestampType || type instanceof TimestampNTZType
        ? timestamp(((Number) value).longValue(), type instanceof TimestampType) : null;
  }

  private static String timestamp(long micros, boolean zoned) {
    long seconds = Math.floorDiv(micros, 1_000_000L);
    if (seconds < YEAR_1 || seconds >= YEAR_10000) {
      return null;
    }
    Instant instant = Instant.ofEpochSecond(seconds, Math.floorMod(micros, 1_000_000L) * 1000);
    return "timestamp '" + MICROS.format(instant.atOffset(ZoneOffset.UTC)) + (zoned ? "Z'" : "'");
  }
}
