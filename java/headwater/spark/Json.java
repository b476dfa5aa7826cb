package headwater.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as text and as trees; text is what travels to executors, trees are what code looks into. */
final class Json {
  static final ObjectMapper MAPPER = new ObjectMapper();

  private Json() {}

  static ObjectNode object() {
    return MAPPER.createObjectNode();
  }

  static ArrayNode array(String... items) {
    ArrayNode array = MAPPER.createArrayNode();
    for (String item : items) {
      array.add(item);
    }
    return array;
  }

  static ObjectNode object(Map<String, String> map) {
    ObjectNode object = object();
    map.forEach(object::put);
    return object;
  }

  static JsonNode parse(String text) {
    try {
      return MAPPER.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("the worker sent something that is not JSON", error);
    }
  }

  static List<String> texts(JsonNode array) {
    List<String> texts = new ArrayList<>();
    array.forEach(item -> texts.add(item.asText()));
    return texts;
  }

  static Map<String, String> strings(JsonNode object) {
    Map<String, String> map = new LinkedHashMap<>();
    object.properties().forEach(entry -> map.put(entry.getKey(), entry.getValue().asText()));
    return map;
  }
}
