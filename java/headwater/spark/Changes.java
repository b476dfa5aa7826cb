package headwater.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.types.DataType;

/** ALTER TABLE's changes as the worker takes them. */
final class Changes {
  private Changes() {}

  static ObjectNode toJson(TableChange change) {
    if (change instanceof TableChange.SetProperty set) {
      return action("set_property").put("key", set.property()).put("value", set.value());
    }
    if (change instanceof TableChange.RemoveProperty remove) {
      return action("remove_property").put("key", remove.property());
    }
    if (change instanceof TableChange.AddColumn add) {
      if (add.defaultValue() != null) {
        throw new UnsupportedOperationException(
            "ALTER TABLE ... ADD COLUMN takes no DEFAULT: the rows that are there have NULL in a new column");
      }
      ObjectNode json = typed("add_column", add.fieldNames(), add.dataType()).put("comment", add.comment());
      return json.put("nullable", add.isNullable()).put("position", add.position() != null);
    }
    if (change instanceof TableChange.DeleteColumn delete) {
      return column("drop_column", delete.fieldNames()).put("if_exists", delete.ifExists());
    }
    if (change instanceof TableChange.RenameColumn rename) {
      return column("rename_column", rename.fieldNames()).put("name", rename.newName());
    }
    if (change instanceof TableChange.UpdateColumnType update) {
      return typed("column_type", update.fieldNames(), update.newDataType());
    }
    if (change instanceof TableChange.UpdateColumnNullability update) {
      return column("column_nullable", update.fieldNames()).put("nullable", update.nullable());
    }
    if (change instanceof TableChange.UpdateColumnComment update) {
      return column("column_comment", update.fieldNames()).put("comment", update.newComment());
    }
    throw new UnsupportedOperationException(
        "ALTER TABLE cannot do this to a Lance table: " + change.getClass().getSimpleName());
  }

  private static ObjectNode action(String action) {
    return Json.object().put("action", action);
  }

  private static ObjectNode column(String action, String[] path) {
    ObjectNode json = action(action);
    json.set("path", Json.array(path));
    return json;
  }

  private static ObjectNode typed(String action, String[] path, DataType type) {
    ObjectNode json = column(action, path);
    json.set("type", Json.parse(type.json()));
    return json;
  }
}
