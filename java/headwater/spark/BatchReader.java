package headwater.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads one part: Arrow batches from the Python worker, seen by Spark as column vectors without a copy. */
final class BatchReader implements PartitionReader<ColumnarBatch> {
  static final BufferAllocator ROOT = new RootAllocator();

  private final Worker.Connection connection;
  private final BufferAllocator allocator;
  private final ArrowStreamReader reader;
  private final StructType columns;
  private ArrowColumn[] vectors;
  private ColumnarBatch batch;
  private boolean complete;

  BatchReader(String python, String scan, TableScan.Told part, StructType columns) {
    this.columns = columns;
    this.connection = Worker.of(python).open();
    ObjectNode request = Json.object().put("op", "read");
    request.set("scan", Json.parse(scan));
    request.set("part", Json.parse(part.json()));
    if (part.keys() != null) {
      request.set("keys", Json.parse(part.keys()));
    }
    try {
      connection.send(request);
      connection.receive();
    } catch (IOException | HeadwaterException error) {
      connection.release(error instanceof HeadwaterException);
      throw error instanceof HeadwaterException told ? told : new HeadwaterException(17, error.getMessage());
    }
    this.allocator = ROOT.newChildAllocator("headwater-read", 0, Long.MAX_VALUE);
    this.reader = new ArrowStreamReader(connection.channel, allocator);
  }

  @Override
  public boolean next() throws IOException {
    if (complete) {
      return false;
    }
    if (!reader.loadNextBatch()) {
      complete = true;
      connection.receive();
      return false;
    }
    VectorSchemaRoot root = reader.getVectorSchemaRoot();
    if (vectors == null) {
      vectors = wrap(root.getFieldVectors());
      batch = new ColumnarBatch(vectors);
    }
    for (ArrowColumn vector : vectors) {
      vector.bind();
    }
    batch.setNumRows(root.getRowCount());
    return true;
  }

  private ArrowColumn[] wrap(List<FieldVector> found) {
    ArrowColumn[] wrapped = new ArrowColumn[found.size()];
    for (int i = 0; i < wrapped.length; i++) {
      StructField field = columns.fields()[i];
      wrapped[i] = ArrowColumn.of(found.get(i), field.dataType());
    }
    return wrapped;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() throws IOException {
    reader.close(false);
    allocator.close();
    connection.release(complete);
  }
}
