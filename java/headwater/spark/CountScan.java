package headwater.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** count(*), answered from the manifest, an index, or the filter's columns, without a row leaving Lance. */
final class CountScan implements LocalScan {
  private final HeadwaterTable table;
  private final ObjectNode scan;

  CountScan(HeadwaterTable table, ObjectNode scan) {
    this.table = table;
    this.scan = scan;
  }

  @Override
  public StructType readSchema() {
    return new StructType().add("count(*)", DataTypes.LongType, false);
  }

  @Override
  public InternalRow[] rows() {
    ObjectNode request = table.session.request("count");
    request.set("scan", scan);
    long count = table.session.call(request).asLong();
    return new InternalRow[] {new GenericInternalRow(new Object[] {count})};
  }

  @Override
  public String description() {
    return "count(*) of " + table.name() + " version " + table.pinned() + " where " + scan.get("filter").asText();
  }
}
