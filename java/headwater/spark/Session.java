package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A configured catalog on the driver: its options and the Python worker that speaks for it. Whoever may run SQL can SET
 * any option of a new catalog, so what is run, where a token goes and who is asked come from the static configuration,
 * or from an access file, which the worker takes only if it is its user's alone.
 */
final class Session {
  private static final String ACCESS_FILE = "access_file";

  final String catalog;
  final String python;
  /** The statement that this session is inside of; null: none is known. */
  final Statement statement;
  private final ObjectNode options;

  Session(String catalog, CaseInsensitiveStringMap options) {
    this.catalog = catalog;
    this.statement = null;
    Map<String, String> fixed = fixed("spark.sql.catalog." + catalog + ".");
    this.python = python(fixed.get("python"));
    Map<String, String> given = new TreeMap<>(options.asCaseSensitiveMap());
    String file = given.remove(ACCESS_FILE);
    given.forEach((key, value) -> require(key, value.equals(fixed.get(key))));
    given.remove("python");
    this.options = Json.object(file == null ? given : Map.of(ACCESS_FILE, file));
  }

  private Session(Session other, Statement statement) {
    this.catalog = other.catalog;
    this.python = other.python;
    this.options = other.options;
    this.statement = statement;
  }

  /** The same catalog inside a statement, which takes note of what is read. */
  Session within(Statement statement) {
    return new Session(this, statement);
  }

  private void require(String key, boolean holds) {
    if (!holds) {
      throw new HeadwaterException(HeadwaterException.PERMISSION_DENIED, "The option " + key + " of the catalog "
          + catalog + " was set in a running session. It is taken only from the configuration that Spark was started "
          + "with; headwater.spark.configure() prepares one.");
    }
  }

  /** What Spark was started with, which no SET changes. */
  private static Map<String, String> fixed(String prefix) {
    Map<String, String> found = new TreeMap<>();
    if (SparkEnv.get() != null) {
      for (var entry : SparkEnv.get().conf().getAllWithPrefix(prefix)) {
        found.put(entry._1(), entry._2());
      }
    }
    return found;
  }

  static String python(String configured) {
    if (configured != null) {
      return configured;
    }
    for (String key : new String[] {"spark.headwater.python", "spark.pyspark.python"}) {
      String value = SparkEnv.get() == null ? null : SparkEnv.get().conf().get(key, null);
      if (value != null) {
        return value;
      }
    }
    String environment = System.getenv("PYSPARK_PYTHON");
    return environment == null ? "python3" : environment;
  }

  /** A call that names this catalog. */
  ObjectNode request(String operation) {
    ObjectNode request = Json.object().put("op", operation);
    request.set("catalog", options);
    return request;
  }

  /** A call that ends a statement, with the tables that it has read. */
  ObjectNode commit(String operation) {
    ObjectNode request = request(operation);
    if (statement != null) {
      request.set("reads", statement.reads());
    }
    return request;
  }

  ObjectNode request(String operation, String... id) {
    ObjectNode request = request(operation);
    request.set("id", Json.array(id));
    return request;
  }

  JsonNode call(ObjectNode request) {
    return Worker.of(python).call(request);
  }

  /** A call that may ask for tasks to be run before it answers. */
  JsonNode call(ObjectNode request, Function<JsonNode, ArrayNode> run) {
    return Worker.of(python).call(request, run);
  }
}
