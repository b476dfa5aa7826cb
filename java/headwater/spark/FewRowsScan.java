package headwater.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructType;

/** The rows of a filter that an index answered with few: fetched by the driver, without a job. */
final class FewRowsScan implements LocalScan, SupportsReportStatistics {
  private final TableScan planned;
  private final long count;
  private InternalRow[] rows;

  FewRowsScan(TableScan planned, long count) {
    this.planned = planned;
    this.count = count;
  }

  long count() {
    return count;
  }

  @Override
  public StructType readSchema() {
    return planned.readSchema();
  }

  @Override
  public String description() {
    return planned.description() + " found " + count + " rows by index";
  }

  @Override
  public Statistics estimateStatistics() {
    long bytes = count * (TableScan.ROW_BYTES + readSchema().defaultSize());
    return new TableScan.Estimate(OptionalLong.of(bytes), OptionalLong.of(count));
  }

  @Override
  public synchronized InternalRow[] rows() {
    if (rows == null) {
      List<InternalRow> found = new ArrayList<>();
      UnsafeProjection copied = UnsafeProjection.create(readSchema());
      for (var part : planned.planInputPartitions()) {
        try (var reader = planned.createReaderFactory().createColumnarReader(part)) {
          while (reader.next()) {
            for (Iterator<InternalRow> each = reader.get().rowIterator(); each.hasNext();) {
              found.add(copied.apply(each.next()).copy());
            }
          }
        } catch (IOException error) {
          throw new HeadwaterException(17, error.getMessage());
        }
      }
      rows = found.toArray(new InternalRow[0]);
    }
    return rows;
  }
}
