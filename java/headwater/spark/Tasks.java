package headwater.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import org.apache.spark.api.java.JavaSparkContext;

/** Calls of the workers of executors, a task of Spark each: headwater.work.SparkRunner. */
public final class Tasks {
  private Tasks() {}

  /** What the workers answered to calls, JSON each, in their order. Nothing is committed by it. */
  public static List<String> run(JavaSparkContext spark, List<String> calls) {
    String python = Session.python(null);
    return spark.parallelize(calls, calls.size()).map(call -> answer(python, call)).collect();
  }

  private static String answer(String python, String call) {
    return Worker.of(python).call((ObjectNode) Json.parse(call)).toString();
  }
}
