package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsPartitionManagement;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** A table that is PARTITIONED BY something: SHOW PARTITIONS. Partitions come and go with their rows. */
final class PartitionedTable extends HeadwaterTable implements SupportsPartitionManagement {
  PartitionedTable(Session session, Identifier ident, StructType schema, JsonNode loaded, boolean travelled) {
    super(session, ident, schema, loaded, travelled);
  }

  /** Values are told as text, since a transform's value has no type of the column's. */
  @Override
  public StructType partitionSchema() {
    StructType names = new StructType();
    for (JsonNode field : partitionedBy(loaded)) {
      names = names.add(field.get("name").asText(), DataTypes.StringType, true);
    }
    return names;
  }

  @Override
  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow asked) {
    List<InternalRow> found = new ArrayList<>();
    for (JsonNode values : session.call(request("partitions"))) {
      Object[] row = new Object[values.size()];
      for (int i = 0; i < row.length; i++) {
        row[i] = values.get(i).isNull() ? null : UTF8String.fromString(values.get(i).asText());
      }
      InternalRow partition = new GenericInternalRow(row);
      if (isAsked(partition, names, asked)) {
        found.add(partition);
      }
    }
    return found.toArray(new InternalRow[0]);
  }

  private boolean isAsked(InternalRow partition, String[] names, InternalRow asked) {
    for (int i = 0; i < names.length; i++) {
      int index = partitionSchema().fieldIndex(names[i]);
      UTF8String value = partition.isNullAt(index) ? null : partition.getUTF8String(index);
      UTF8String wanted = asked.isNullAt(i) ? null : asked.getUTF8String(i);
      if (value == null ? wanted != null : !value.equals(wanted)) {
        return false;
      }
    }
    return true;
  }

  @Override
  public void createPartition(InternalRow partition, Map<String, String> properties) {
    throw new UnsupportedOperationException("A partition is there when it has rows: INSERT them.");
  }

  @Override
  public boolean dropPartition(InternalRow partition) {
    throw new UnsupportedOperationException("Remove a partition's rows: DELETE FROM " + name() + " WHERE ...");
  }

  @Override
  public void replacePartitionMetadata(InternalRow partition, Map<String, String> properties) {
    throw new UnsupportedOperationException("Partitions of a Lance table have no properties.");
  }

  @Override
  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return Map.of();
  }
}
