package headwater.spark;

import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Like;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.filter.Not;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy$;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;

/**
 * Spark's expressions as predicates. Spark itself says all but LIKE in a public form, so a pattern such as
 * '%special%requests%' would have Spark fetch the whole column to look at it.
 */
final class Patterns {
  private Patterns() {}

  /** The predicate, or null if it has no such form. */
  static Predicate predicate(Expression expression) {
    Option<Predicate> known = DataSourceV2Strategy$.MODULE$.translateFilterV2(expression);
    return known.isDefined() ? known.get() : like(expression);
  }

  /** A column [NOT] LIKE a text with no other sign than `%`: there Spark and Lance cannot differ. */
  private static Predicate like(Expression expression) {
    if (expression instanceof org.apache.spark.sql.catalyst.expressions.Not not) {
      Predicate inner = like(not.child());
      return inner == null ? null : new Not(inner);
    }
    if (!(expression instanceof Like like) || !(like.left() instanceof AttributeReference column)
        || !(like.right() instanceof Literal pattern) || pattern.value() == null
        || !column.dataType().equals(DataTypes.StringType) || !pattern.dataType().equals(DataTypes.StringType)) {
      return null;
    }
    String text = pattern.value().toString();
    if (text.indexOf('_') >= 0 || text.indexOf('\\') >= 0 || text.indexOf(like.escapeChar()) >= 0) {
      return null;
    }
    return new Predicate("LIKE", new org.apache.spark.sql.connector.expressions.Expression[] {
        FieldReference.column(column.name()), new LiteralValue<>(pattern.value(), DataTypes.StringType)});
  }
}
