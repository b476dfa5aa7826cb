package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A configured catalog on the driver: its options and the Python worker that speaks for it. */
final class Session {
  final String catalog;
  final String python;
  private final ObjectNode options;

  Session(String catalog, CaseInsensitiveStringMap options) {
    this.catalog = catalog;
    this.python = python(options.get("python"));
    Map<String, String> kept = new TreeMap<>(options.asCaseSensitiveMap());
    kept.remove("python");
    this.options = Json.object(kept);
  }

  private static String python(String configured) {
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

  ObjectNode request(String operation, String... id) {
    ObjectNode request = request(operation);
    request.set("id", Json.array(id));
    return request;
  }

  JsonNode call(ObjectNode request) {
    return Worker.of(python).call(request);
  }
}
