package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Path;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataTypes;

/**
 * The golden frames as Java sees them: each call goes over the worker's own wire to a Python that reads it as the
 * protocol says, and its answer comes back. What Java makes of Spark's objects is compared with what the frames hold.
 */
public final class GoldenFrames {
  private GoldenFrames() {}

  public static void main(String[] arguments) throws Exception {
    JsonNode golden = Json.MAPPER.readTree(Path.of(arguments[0]).toFile());
    Worker worker = Worker.of(arguments[1]);
    for (JsonNode each : golden) {
      JsonNode answer = each.get("answer");
      try {
        same(answer.get("ok"), worker.call((ObjectNode) each.get("call")));
      } catch (HeadwaterException error) {
        require(answer.has("error"), "an error nobody expected: " + error.getMessage());
        require(error.code() == answer.get("error").get("code").asInt(), "the code of " + each);
        require(error.getMessage().equals(answer.get("error").get("message").asText()), "the message of " + each);
      }
    }
    changes(call(golden, "alter_table").get("changes"));
    same(call(golden, "create_table").get("partitioning"), Partitioning.toJson(
        new Transform[] {Expressions.identity("region"), Expressions.bucket(8, "id")}));
    parts(golden);
    System.out.println(golden.size() + " frames read");
    System.exit(0);
  }

  private static void changes(JsonNode golden) {
    TableChange[] made = {
        TableChange.setProperty("k", "v"), TableChange.removeProperty("k"),
        TableChange.addColumn(new String[] {"s", "n"}, DataTypes.IntegerType),
        TableChange.deleteColumn(new String[] {"n"}, true), TableChange.renameColumn(new String[] {"a"}, "b"),
        TableChange.updateColumnType(new String[] {"a"}, DataTypes.createArrayType(DataTypes.FloatType)),
        TableChange.updateColumnNullability(new String[] {"a"}, true),
        TableChange.updateColumnComment(new String[] {"a"}, "why")};
    require(golden.size() == made.length, "as many changes");
    for (int i = 0; i < made.length; i++) {
      same(golden.get(i), Changes.toJson(made[i]));
    }
  }

  /** What was planned is what is read: a part goes from an answer into a call as it is. */
  private static void parts(JsonNode golden) {
    for (String operation : new String[] {"plan", "stream_plan", "changes_plan"}) {
      JsonNode planned = answer(golden, operation);
      var parts = TableScan.Part.all(planned);
      for (int i = 0; i < parts.length; i++) {
        same(planned.get(i), Json.parse(((TableScan.Part) parts[i]).json()));
      }
    }
  }

  private static JsonNode call(JsonNode golden, String operation) {
    for (JsonNode each : golden) {
      if (each.get("call").get("op").asText().equals(operation)) {
        return each.get("call");
      }
    }
    throw new IllegalStateException("no frame of " + operation);
  }

  private static JsonNode answer(JsonNode golden, String operation) {
    for (JsonNode each : golden) {
      if (each.get("call").get("op").asText().equals(operation)) {
        return each.get("answer").get("ok");
      }
    }
    throw new IllegalStateException("no frame of " + operation);
  }

  private static void same(JsonNode golden, JsonNode found) {
    require(golden.equals(found) || golden.toString().equals(found.toString()), golden + " is not " + found);
  }

  private static void require(boolean holds, String what) {
    if (!holds) {
      throw new IllegalStateException(what);
    }
  }
}
