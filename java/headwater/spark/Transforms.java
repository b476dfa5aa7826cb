package headwater.spark;

import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.Set;
import java.util.zip.CRC32;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The partition transforms as functions, so that Spark can bring the rows of a partition together before they are
 * written. They answer what `transformed` of headwater/spark/partitions.py answers, which alone decides the partition.
 */
record Transforms(String name) implements UnboundFunction {
  static final Set<String> NAMES = Set.of("years", "months", "days", "hours", "bucket", "truncate");
  private static final long DAY = 86_400_000_000L;
  private static final long HOUR = 3_600_000_000L;

  @Override
  public String description() {
    return name + ": a partition transform of Headwater";
  }

  @Override
  public BoundFunction bind(StructType input) {
    boolean sized = name.equals("bucket") || name.equals("truncate");
    if (input.size() != (sized ? 2 : 1)) {
      throw new UnsupportedOperationException(name + " takes " + (sized ? "a number and a column" : "one column"));
    }
    DataType type = input.fields()[input.size() - 1].dataType();
    if (sized && !isWhole(input.fields()[0].dataType()) || !fits(type)) {
      throw new UnsupportedOperationException(name + " cannot be taken of " + input.simpleString());
    }
    return new Bound(name, sized, type);
  }

  private boolean fits(DataType type) {
    boolean date = type instanceof DateType;
    boolean moment = type instanceof TimestampType || type instanceof TimestampNTZType;
    return switch (name) {
      case "bucket" -> date || moment || isWhole(type) || type instanceof StringType;
      case "truncate" -> isWhole(type) || type instanceof StringType;
      case "hours" -> moment;
      default -> date || moment;
    };
  }

  private static boolean isWhole(DataType type) {
    return type instanceof ByteType || type instanceof ShortType || type instanceof IntegerType
        || type instanceof LongType;
  }

  private record Bound(String name, boolean sized, DataType type) implements ScalarFunction<Object> {
    @Override
    public String toString() {
      return name;
    }

    @Override
    public DataType[] inputTypes() {
      return sized ? new DataType[] {DataTypes.IntegerType, type} : new DataType[] {type};
    }

    @Override
    public DataType resultType() {
      return name.equals("truncate") && type instanceof StringType ? DataTypes.StringType : DataTypes.LongType;
    }

    @Override
    public String canonicalName() {
      return "headwater." + name + "(" + type.simpleString() + ")";
    }

    @Override
    public Object produceResult(InternalRow input) {
      int last = sized ? 1 : 0;
      if (input.isNullAt(last) || input.isNullAt(0)) {
        return null;
      }
      int width = sized ? input.getInt(0) : 0;
      if (type instanceof StringType) {
        UTF8String text = input.getUTF8String(last);
        return name.equals("bucket") ? (Object) (checksum(text) % width) : text.substring(0, width);
      }
      return whole(number(input, last), width);
    }

    private long number(InternalRow input, int index) {
      return ((Number) input.get(index, type)).longValue();
    }

    private long whole(long value, int width) {
      return switch (name) {
        case "bucket" -> ((value * 0x9E3779B97F4A7C15L) >>> 33) % width;
        case "truncate" -> Math.floorDiv(value, width);
        case "hours" -> Math.floorDiv(value, HOUR);
        default -> calendar(type instanceof DateType ? value : Math.floorDiv(value, DAY));
      };
    }

    private long calendar(long day) {
      if (name.equals("days")) {
        return day;
      }
      LocalDate date = LocalDate.ofEpochDay(day);
      long years = date.getYear() - 1970L;
      return name.equals("years") ? years : 12 * years + date.getMonthValue() - 1;
    }

    private static long checksum(UTF8String text) {
      CRC32 sum = new CRC32();
      sum.update(text.toString().getBytes(StandardCharsets.UTF_8));
      return sum.getValue();
    }
  }
}
