package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Base64;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * UPDATE, DELETE and MERGE: only the rows that change are written. Tasks write new and changed rows as data files and
 * report the addresses of the rows to take away; the driver makes one commit, pinned to the version that was read.
 */
final class RowLevel extends RowChanges {
  RowLevel(HeadwaterTable table, Command command) {
    super(table, command);
  }

  @Override
  public NamedReference[] rowId() {
    return new NamedReference[] {
        Expressions.column(HeadwaterTable.ROW_ADDRESS), Expressions.column(HeadwaterTable.ROW_ID)};
  }

  @Override
  protected DeltaWrite write(LogicalWriteInfo info) {
    return new Delta(table, info);
  }

  private record Delta(HeadwaterTable table, LogicalWriteInfo info) implements DeltaWrite, DeltaBatchWrite {
    @Override
    public DeltaBatchWrite toBatch() {
      return this;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      ObjectNode request = Json.object().put("op", "write");
      request.set("table", table.reference());
      return new Factory(table.session.python, request.toString(), info.schema());
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      ObjectNode request = table.commit("commit_delta");
      ArrayNode deleted = request.putArray("deleted");
      ArrayNode added = request.putArray("added");
      for (WriterCommitMessage message : messages) {
        if (message != null) {
          Changed changed = (Changed) message;
          deleted.add(changed.deleted);
          Json.parse(changed.added).forEach(added::add);
        }
      }
      table.session.call(request);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      // files of a failed job belong to no version; cleanup collects them
    }
  }

  /** What one task changed: fragments added, and addresses of rows taken away, 8 bytes each in base64. */
  private record Changed(String added, String deleted) implements WriterCommitMessage {}

  private record Factory(String python, String request, StructType schema) implements DeltaWriterFactory {
    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new TaskWriter(this);
    }
  }

  private static final class TaskWriter implements DeltaWriter<InternalRow> {
    private final Factory factory;
    private long[] deleted = new long[256];
    private int deletions;
    private BatchSender inserts;
    private BatchSender updates;

    TaskWriter(Factory factory) {
      this.factory = factory;
    }

    @Override
    public void delete(InternalRow metadata, InternalRow id) {
      if (deletions == deleted.length) {
        deleted = Arrays.copyOf(deleted, 2 * deletions);
      }
      deleted[deletions++] = id.getLong(0);
    }

    @Override
    public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
      delete(metadata, id);
      if (updates == null) {
        ObjectNode request = ((ObjectNode) Json.parse(factory.request)).put("row_ids", true);
        StructType schema = factory.schema.add(HeadwaterTable.ROW_ID, DataTypes.LongType, false);
        updates = new BatchSender(factory.python, request.toString(), schema);
      }
      updates.write(new JoinedRow(row, new GenericInternalRow(new Object[] {id.getLong(1)})));
    }

    @Override
    public void reinsert(InternalRow metadata, InternalRow row) throws IOException {
      insert(row);
    }

    @Override
    public void insert(InternalRow row) throws IOException {
      if (inserts == null) {
        inserts = new BatchSender(factory.python, factory.request, factory.schema);
      }
      inserts.write(row);
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      ArrayNode added = Json.MAPPER.createArrayNode();
      for (BatchSender sender : new BatchSender[] {updates, inserts}) {
        if (sender != null) {
          JsonNode fragments = sender.finish();
          fragments.forEach(added::add);
        }
      }
      return new Changed(added.toString(), packed());
    }

    private String packed() {
      ByteBuffer bytes = ByteBuffer.allocate(8 * deletions).order(ByteOrder.LITTLE_ENDIAN);
      bytes.asLongBuffer().put(deleted, 0, deletions);
      return Base64.getEncoder().encodeToString(bytes.array());
    }

    @Override
    public void abort() {
      // close breaks the streams off
    }

    @Override
    public void close() {
      for (BatchSender sender : new BatchSender[] {updates, inserts}) {
        if (sender != null) {
          sender.close();
        }
      }
    }
  }
}
