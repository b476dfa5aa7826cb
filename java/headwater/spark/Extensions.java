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
import org.apache.spark.sql.types.NumericType;
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
 * around the function applies to what it found. And the rules of stream tables.
 */
public final class Extensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    add(extensions, "vector_search", "_distance");
    add(extensions, "text_search", "_score");
    StreamRules.inject(extensions);
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
      throw invalid(name + " takes (table, column, query, k) and an optional filter.");
    }
    String[] path = text(arguments[0]).split("\\.");
    if (path.length < 2) {
      throw invalid(name + " takes the table as catalog.namespace.table, not '" + text(arguments[0]) + "'.");
    }
    HeadwaterCatalog catalog = DefaultSource.catalog(path[0]);
    Identifier ident = Identifier.of(Arrays.copyOfRange(path, 1, path.length - 1), path[path.length - 1]);
    ObjectNode search = Json.object().put("column", text(arguments[1]));
    if (!(value(arguments[3]) instanceof Number k) || k.longValue() < 1) {
      throw invalid("The number of rows to find must be a whole number from 1 on, not " + arguments[3].sql() + ".");
    }
    search.put("k", k.longValue());
    if (arguments.length == 5) {
      search.put("filter", text(arguments[4]));
    }
    search.set("query", score.equals("_distance") ? numbers(arguments[2]) : Json.MAPPER.valueToTree(text(arguments[2])));
    HeadwaterTable table = searched(catalog, ident, search, score);
    return DataSourceV2Relation.create(table, Option.empty(), Option.empty());
  }

  /** The table as the search finds it. The worker looks at the search now, so that what is wrong with it is told once. */
  private static HeadwaterTable searched(HeadwaterCatalog catalog, Identifier ident, ObjectNode search, String score) {
    HeadwaterTable table;
    try {
      table = catalog.loadTableAs(ident);
    } catch (NoSuchTableException error) {
      throw new HeadwaterException(HeadwaterException.TABLE_NOT_FOUND, "There is no table " + catalog.name() + "."
          + String.join(".", HeadwaterCatalog.id(ident)) + " to search.");
    }
    ObjectNode request = table.request("check_search");
    request.set("search", search);
    table.session.call(request);
    ObjectNode loaded = ((ObjectNode) table.loaded).deepCopy();
    loaded.set("search", search);
    loaded.put("rows", search.get("k").asLong());
    StructType schema = table.schema.add(score, DataTypes.FloatType, true);
    return new HeadwaterTable(table.session, ident, schema, loaded, true);
  }

  private static HeadwaterException invalid(String message) {
    return new HeadwaterException(HeadwaterException.INVALID_INPUT, message);
  }

  private static Object value(Expression expression) {
    if (!expression.foldable()) {
      throw invalid("A search takes constants, not " + expression.sql() + ".");
    }
    Object found = expression.eval(null);
    if (found == null) {
      throw invalid("A search takes no NULL.");
    }
    return found;
  }

  private static String text(Expression expression) {
    return String.valueOf(value(expression));
  }

  private static JsonNode numbers(Expression expression) {
    if (!(expression.dataType() instanceof ArrayType type)) {
      throw invalid("The query of a vector search is an array of numbers, not " + expression.sql() + ".");
    }
    if (!(type.elementType() instanceof NumericType)) {
      throw invalid("The query of a vector search is an array of numbers, not of " + type.elementType().sql() + ".");
    }
    ArrayData items = (ArrayData) value(expression);
    ArrayNode numbers = Json.MAPPER.createArrayNode();
    for (int i = 0; i < items.numElements(); i++) {
      if (items.isNullAt(i)) {
        throw invalid("The query of a vector search has a NULL at position " + i + ".");
      }
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
    if (type.equals(DataTypes.LongType)) {
      return items.getLong(i);
    }
    return type.equals(DataTypes.ShortType) ? items.getShort(i)
        : type.equals(DataTypes.ByteType) ? items.getByte(i) : items.getInt(i);
  }
}
