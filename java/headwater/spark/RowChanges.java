package headwater.spark;

import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A statement that changes single rows of a table, and reads them for it with what tells them apart. */
abstract class RowChanges implements SupportsDelta {
  protected final HeadwaterTable table;
  protected final RowLevelOperation.Command command;

  RowChanges(HeadwaterTable table, RowLevelOperation.Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public final RowLevelOperation.Command command() {
    return command;
  }

  @Override
  public final ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new ReadBuilder(table, options, true);
  }

  /** How the changed rows are written and committed. */
  protected abstract DeltaWrite write(LogicalWriteInfo info);

  @Override
  public final DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        return write(info);
      }
    };
  }
}
