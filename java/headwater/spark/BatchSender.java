package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/** Sends rows to the Python worker as Arrow batches; the worker answers the metadata of the files it made of them. */
final class BatchSender implements AutoCloseable {
  private static final int MAX_ROWS = 65_536;
  private static final long MAX_BYTES = 8L << 20;
  private static final int CHECK_ROWS = 1024;

  private final Worker.Connection connection;
  private final BufferAllocator allocator;
  private final VectorSchemaRoot root;
  private final ArrowWriter rows;
  private final ArrowStreamWriter stream;
  private int count;
  private boolean complete;

  BatchSender(String python, String request, StructType schema) throws IOException {
    this(python, request, schema, "UTC");
  }

  /** Timestamps are told as of a time zone. */
  BatchSender(String python, String request, StructType schema, String zone) throws IOException {
    this.connection = Worker.of(python).open();
    this.allocator = BatchReader.ROOT.newChildAllocator("headwater-write", 0, Long.MAX_VALUE);
    this.root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(schema, zone, false, false, false), allocator);
    this.rows = ArrowWriter.create(root);
    this.stream = new ArrowStreamWriter(root, null, connection.channel);
    connection.send((ObjectNode) Json.parse(request));
    stream.start();
  }

  void write(InternalRow row) throws IOException {
    rows.write(row);
    count++;
    if (count == MAX_ROWS || (count % CHECK_ROWS == 0 && rows.sizeInBytes() > MAX_BYTES)) {
      flush();
    }
  }

  private void flush() throws IOException {
    rows.finish();
    stream.writeBatch();
    rows.reset();
    count = 0;
  }

  /** All rows are sent: the fragments they became. */
  JsonNode finish() throws IOException {
    if (count > 0) {
      flush();
    }
    stream.end();
    try {
      JsonNode fragments = connection.receive();
      complete = true;
      return fragments;
    } catch (HeadwaterException error) {
      complete = true;
      throw error;
    }
  }

  /** Before `finish` this breaks the stream off, and the worker commits nothing. */
  @Override
  public void close() {
    root.close();
    allocator.close();
    connection.release(complete);
  }
}
