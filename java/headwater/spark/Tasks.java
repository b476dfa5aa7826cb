package headwater.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Serializable;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaSparkContext;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;

/** Calls of the workers of executors, a task of Spark each: headwater.work.SparkRunner. */
public final class Tasks {
  private static final ClassTag<String> TEXT = ClassTag$.MODULE$.apply(String.class);

  private Tasks() {}

  /** What the workers answered to calls, JSON each, in their order. Nothing is committed by it. */
  public static List<String> run(JavaSparkContext spark, List<String> calls) {
    Answer answer = new Answer(Session.python(null));
    return List.of((String[]) spark.sc().runJob(spark.parallelize(calls, calls.size()).rdd(), answer, TEXT));
  }

  /** Not a lambda: to send one, Spark reads the byte code around it, which takes longer than the rest of a job. */
  private static final class Answer extends AbstractFunction2<TaskContext, Iterator<String>, String>
      implements Serializable {
    private final String python;

    Answer(String python) {
      this.python = python;
    }

    @Override
    public String apply(TaskContext context, Iterator<String> call) {
      return Worker.of(python).call((ObjectNode) Json.parse(call.next())).toString();
    }
  }
}
