package headwater.spark;

import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.runtime.AbstractFunction0;

/** The rows of a frame to the workers of executors, a call for each partition that has rows: headwater.pipeline.ingest. */
public final class FrameRows {
  private FrameRows() {}

  /** What the workers answered, JSON for each partition in their order. Nothing is committed by it. */
  public static List<String> send(Dataset<Row> frame, String request) {
    QueryExecution query = frame.queryExecution();
    String python = Session.python(null);
    if (query.sparkSession().sparkContext().isLocal()) { // it starts while Spark plans and compiles the query
      Worker.begin(python);
    }
    StructType schema = frame.schema();
    String zone = query.sparkSession().sessionState().conf().sessionLocalTimeZone();
    return SQLExecution.withNewExecutionId(query, Option.apply("ingest"), new AbstractFunction0<List<String>>() {
      @Override
      public List<String> apply() {
        return query.toRdd().toJavaRDD().mapPartitions(rows -> answer(rows, python, request, schema, zone)).collect();
      }
    });
  }

  private static Iterator<String> answer(
      Iterator<InternalRow> rows, String python, String request, StructType schema, String zone) throws IOException {
    if (!rows.hasNext()) {
      return Collections.emptyIterator();
    }
    try (BatchSender sender = new BatchSender(python, request, schema, zone)) {
      while (rows.hasNext()) {
        sender.write(rows.next());
      }
      return List.of(sender.finish().toString()).iterator();
    }
  }
}
