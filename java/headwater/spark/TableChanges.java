package headwater.spark;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
final class TableChanges implements Changelog {
  TableChanges(HeadwaterTable table, ChangelogContext context) {}
  public String name() { return ""; }
  public Column[] columns() { return null; }
  public boolean containsCarryoverRows() { return false; }
  public boolean containsIntermediateChanges() { return false; }
  public boolean representsUpdateAsDeleteAndInsert() { return false; }
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return null; }
}
