package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.LinkedHashSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.transactions.Transaction;
import org.apache.spark.sql.connector.read.Scan;

/**
 * One statement that writes, as a transaction: the tables of the catalog that it reads are noted with their versions,
 * and the one commit that ends its write takes them along. They are all as they were then, or nothing is written.
 * So there is nothing left to do for Spark's own commit, and nothing to take back.
 */
final class Statement implements Transaction {
  private final HeadwaterCatalog catalog;
  private final Set<String> reads = new LinkedHashSet<>();

  Statement(HeadwaterCatalog outside) {
    this.catalog = outside.within(this);
  }

  synchronized void read(JsonNode table) {
    reads.add(table.toString());
  }

  synchronized ArrayNode reads() {
    ArrayNode all = Json.MAPPER.createArrayNode();
    reads.forEach(each -> all.add(Json.parse(each)));
    return all;
  }

  @Override
  public CatalogPlugin catalog() {
    return catalog;
  }

  /** What a cached table was read from is not known any more at this version, so it is read again. */
  @Override
  public boolean registerScans(Scan[] scans) {
    return false;
  }

  @Override
  public void commit() {
    // the write has committed
  }

  @Override
  public void abort() {
    // nothing was written, or the write has failed and told so
  }

  @Override
  public void close() {}
}
