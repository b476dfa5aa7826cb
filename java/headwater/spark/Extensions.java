package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Two table-valued functions: vector_search(table, column, query, k [, filter]) and
 * text_search(table, column, query, k [, filter]). The filter, in Lance's SQL, applies before the search; a WHERE
 * around the function applies to what it found.
 */
public final class Extensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    add(extensions, "vector_search", "_distance");
    add(extensions, "text_search", "_score");
    return BoxedUnit.UNIT;
  }

  private static void add(SparkSessionExtensions extensions, String name, String score) {
    Function1<Seq<Expression>, LogicalPlan> builder = new AbstractFunction1<>() {
      @Override
      public LogicalPlan apply(Seq<Expression> arguments) {
        return search(name, score, CollectionConverters.asJava(arguments).toArray(new Expression[0]));
      }
    };
    ExpressionInfo info = new ExpressionInfo(Extensions.class.getName(), name);
    extensions.injectTableFunction(new Tuple3<>(new FunctionIdentifier(name), info, builder));
  }

  private static LogicalPlan search(String name, String score, Expression[] arguments) {
    if (arguments.length < 4 || arguments.length > 5) {
      throw new IllegalArgumentException(name + " takes (table, column, query, k) and an optional filter.");
    }
    String[] path = text(arguments[0]).split("\\.");
    HeadwaterCatalog catalog = DefaultSource.catalog(path[0]);
    Identifier ident = Identifier.of(Arrays.copyOfRange(path, 1, path.length - 1), path[path.length - 1]);
    ObjectNode search = Json.object().put("column", text(arguments[1]));
    search.put("k", ((Number) value(arguments[3])).longValue());
    if (arguments.length == 5) {
      search.put("filter", text(arguments[4]));
    }
    search.set("query", score.equals("_distance") ? numbers(arguments[2]) : Json.MAPPER.valueToTree(text(arguments[2])));
    HeadwaterTable table = searched(catalog, ident, search, score);
    return DataSourceV2Relation.create(table, Option.empty(), Option.empty());
  }

  private static HeadwaterTable searched(HeadwaterCatalog catalog, Identifier ident, ObjectNode search, String score) {
    try {
      HeadwaterTable table = catalog.loadTableAs(ident);
      ObjectNode loaded = ((ObjectNode) table.loaded).deepCopy();
      loaded.set("search", search);
      loaded.put("rows", search.get("k").asLong());
      StructType schema = table.schema.add(score, DataTypes.FloatType, true);
      return new HeadwaterTable(table.session, ident, schema, loaded, true);
    } catch (NoSuchTableException error) {
      throw new HeadwaterException(HeadwaterException.TABLE_NOT_FOUND, error.getMessage());
    }
  }

  private static Object value(Expression expression) {
    if (!expression.foldable()) {
      throw new IllegalArgumentException("A search takes constants, not " + expression.sql() + ".");
    }
    return expression.eval(null);
  }

  private static String text(Expression expression) {
    return String.valueOf(value(expression));
  }

  private static JsonNode numbers(Expression expression) {
    if (!(expression.dataType() instanceof ArrayType type)) {
      throw new IllegalArgumentException("The query of a vector search is an array of numbers.");
    }
    ArrayData items = (ArrayData) value(expression);
    ArrayNode numbers = Json.MAPPER.createArrayNode();
    for (int i = 0; i < items.numElements(); i++) {
      numbers.add(number(items, i, type.elementType()));
    }
    return numbers;
  }

  private static double number(ArrayData items, int i, DataType type) {
    if (type instanceof DecimalType decimal) {
      return items.getDecimal(i, decimal.precision(), decimal.scale()).toDouble();
    }
    if (type.equals(DataTypes.DoubleType)) {
      return items.getDouble(i);
    }
    if (type.equals(DataTypes.FloatType)) {
      return items.getFloat(i);
    }
    return type.equals(DataTypes.LongType) ? items.getLong(i) : items.getInt(i);
  }
}
