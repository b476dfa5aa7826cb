package headwater.spark;

import java.math.BigDecimal;
import java.math.BigInteger;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseLargeVariableWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.complex.FixedSizeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.MapVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * An Arrow vector as a Spark column, read by address. Spark's own ArrowColumnVector knows no fixed-size lists and
 * checks bounds and types at every value; here one small class stands for each layout and the address is taken once
 * a batch.
 */
abstract class ArrowColumn extends ColumnVector {
  final FieldVector vector;
  private long validity;
  private int nulls;

  private ArrowColumn(FieldVector vector, DataType type) {
    super(type);
    this.vector = vector;
  }

  static ArrowColumn of(FieldVector vector, DataType type) {
    if (vector instanceof NullVector) {
      return new Nulls(vector, type);
    }
    if (vector instanceof BitVector) {
      return new Bits(vector, type);
    }
    if (vector instanceof DecimalVector) {
      return new Decimals(vector, type);
    }
    if (vector instanceof BaseFixedWidthVector) {
      return new Fixed(vector, type);
    }
    if (vector instanceof BaseVariableWidthVector) {
      return new Bytes(vector, type);
    }
    if (vector instanceof BaseLargeVariableWidthVector) {
      return new LargeBytes(vector, type);
    }
    if (vector instanceof MapVector map) {
      return new Maps(map, (MapType) type);
    }
    if (vector instanceof ListVector list) {
      return new Lists(list, (ArrayType) type);
    }
    if (vector instanceof FixedSizeListVector list) {
      return new FixedLists(list, (ArrayType) type);
    }
    if (vector instanceof StructVector struct) {
      return new Structs(struct, (StructType) type);
    }
    throw new UnsupportedOperationException("An Arrow column of type " + vector.getField() + " cannot be read.");
  }

  /** Take the addresses of the batch that was just loaded. */
  void bind() {
    nulls = vector.getNullCount();
    validity = nulls == 0 ? 0 : vector.getValidityBuffer().memoryAddress();
  }

  @Override
  public void close() {
    // the reader owns the memory
  }

  @Override
  public boolean hasNull() {
    return nulls > 0;
  }

  @Override
  public int numNulls() {
    return nulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return validity != 0 && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
  }

  @Override
  public boolean getBoolean(int row) {
    throw wrong();
  }

  @Override
  public byte getByte(int row) {
    throw wrong();
  }

  @Override
  public short getShort(int row) {
    throw wrong();
  }

  @Override
  public int getInt(int row) {
    throw wrong();
  }

  @Override
  public long getLong(int row) {
    throw wrong();
  }

  @Override
  public float getFloat(int row) {
    throw wrong();
  }

  @Override
  public double getDouble(int row) {
    throw wrong();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw wrong();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw wrong();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw wrong();
  }

  @Override
  public UTF8String getUTF8String(int row) {
    throw wrong();
  }

  @Override
  public byte[] getBinary(int row) {
    throw wrong();
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw wrong();
  }

  private UnsupportedOperationException wrong() {
    return new UnsupportedOperationException(vector.getField() + " is not read this way");
  }

  private static final class Nulls extends ArrowColumn {
    Nulls(FieldVector vector, DataType type) {
      super(vector, type);
    }

    @Override
    void bind() {
      // nothing but nulls
    }

    @Override
    public boolean hasNull() {
      return true;
    }

    @Override
    public int numNulls() {
      return vector.getValueCount();
    }

    @Override
    public boolean isNullAt(int row) {
      return true;
    }
  }

  /** Numbers, dates, timestamps, times, intervals: all that Spark holds in 1, 2, 4 or 8 bytes. */
  private static final class Fixed extends ArrowColumn {
    private long data;

    Fixed(FieldVector vector, DataType type) {
      super(vector, type);
    }

    @Override
    void bind() {
      super.bind();
      data = vector.getDataBuffer().memoryAddress();
    }

    @Override
    public byte getByte(int row) {
      return Platform.getByte(null, data + row);
    }

    @Override
    public short getShort(int row) {
      return Platform.getShort(null, data + 2L * row);
    }

    @Override
    public int getInt(int row) {
      return Platform.getInt(null, data + 4L * row);
    }

    @Override
    public long getLong(int row) {
      return Platform.getLong(null, data + 8L * row);
    }

    @Override
    public float getFloat(int row) {
      return Platform.getFloat(null, data + 4L * row);
    }

    @Override
    public double getDouble(int row) {
      return Platform.getDouble(null, data + 8L * row);
    }

    @Override
    public float[] getFloats(int row, int count) {
      float[] values = new float[count];
      Platform.copyMemory(null, data + 4L * row, values, Platform.FLOAT_ARRAY_OFFSET, 4L * count);
      return values;
    }

    @Override
    public double[] getDoubles(int row, int count) {
      double[] values = new double[count];
      Platform.copyMemory(null, data + 8L * row, values, Platform.DOUBLE_ARRAY_OFFSET, 8L * count);
      return values;
    }
  }

  private static final class Bits extends ArrowColumn {
    private long data;

    Bits(FieldVector vector, DataType type) {
      super(vector, type);
    }

    @Override
    void bind() {
      super.bind();
      data = vector.getDataBuffer().memoryAddress();
    }

    @Override
    public boolean getBoolean(int row) {
      return (Platform.getByte(null, data + (row >> 3)) >> (row & 7) & 1) == 1;
    }
  }

  private static final class Decimals extends ArrowColumn {
    private long data;

    Decimals(FieldVector vector, DataType type) {
      super(vector, type);
    }

    @Override
    void bind() {
      super.bind();
      data = vector.getDataBuffer().memoryAddress();
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
      long low = Platform.getLong(null, data + 16L * row);
      if (precision <= Decimal.MAX_LONG_DIGITS()) {
        return Decimal.createUnsafe(low, precision, scale);
      }
      long high = Platform.getLong(null, data + 16L * row + 8);
      byte[] bytes = new byte[16];
      for (int i = 0; i < 8; i++) {
        bytes[7 - i] = (byte) (high >> (8 * i));
        bytes[15 - i] = (byte) (low >> (8 * i));
      }
      return Decimal.apply(new BigDecimal(new BigInteger(bytes), scale), precision, scale);
    }
  }

  /** Strings and binaries with 32-bit offsets. */
  private static final class Bytes extends ArrowColumn {
    private long offsets;
    private long data;

    Bytes(FieldVector vector, DataType type) {
      super(vector, type);
    }

    @Override
    void bind() {
      super.bind();
      offsets = vector.getOffsetBuffer().memoryAddress();
      data = vector.getDataBuffer().memoryAddress();
    }

    @Override
    public UTF8String getUTF8String(int row) {
      int start = Platform.getInt(null, offsets + 4L * row);
      return UTF8String.fromAddress(null, data + start, Platform.getInt(null, offsets + 4L * row + 4) - start);
    }

    @Override
    public byte[] getBinary(int row) {
      int start = Platform.getInt(null, offsets + 4L * row);
      byte[] value = new byte[Platform.getInt(null, offsets + 4L * row + 4) - start];
      Platform.copyMemory(null, data + start, value, Platform.BYTE_ARRAY_OFFSET, value.length);
      return value;
    }
  }

  /** Strings and binaries with 64-bit offsets. */
  private static final class LargeBytes extends ArrowColumn {
    private long offsets;
    private long data;

    LargeBytes(FieldVector vector, DataType type) {
      super(vector, type);
    }

    @Override
    void bind() {
      super.bind();
      offsets = vector.getOffsetBuffer().memoryAddress();
      data = vector.getDataBuffer().memoryAddress();
    }

    private int length(long start, int row) {
      return Math.toIntExact(Platform.getLong(null, offsets + 8L * row + 8) - start);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      long start = Platform.getLong(null, offsets + 8L * row);
      return UTF8String.fromAddress(null, data + start, length(start, row));
    }

    @Override
    public byte[] getBinary(int row) {
      long start = Platform.getLong(null, offsets + 8L * row);
      byte[] value = new byte[length(start, row)];
      Platform.copyMemory(null, data + start, value, Platform.BYTE_ARRAY_OFFSET, value.length);
      return value;
    }
  }

  private static final class Lists extends ArrowColumn {
    private final ArrowColumn items;
    private long offsets;

    Lists(ListVector vector, ArrayType type) {
      super(vector, type);
      this.items = of(vector.getDataVector(), type.elementType());
    }

    @Override
    void bind() {
      super.bind();
      offsets = vector.getOffsetBuffer().memoryAddress();
      items.bind();
    }

    @Override
    public ColumnarArray getArray(int row) {
      int start = Platform.getInt(null, offsets + 4L * row);
      return new ColumnarArray(items, start, Platform.getInt(null, offsets + 4L * row + 4) - start);
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return items;
    }
  }

  private static final class FixedLists extends ArrowColumn {
    private final ArrowColumn items;
    private final int size;

    FixedLists(FixedSizeListVector vector, ArrayType type) {
      super(vector, type);
      this.items = of(vector.getDataVector(), type.elementType());
      this.size = vector.getListSize();
    }

    @Override
    void bind() {
      super.bind();
      items.bind();
    }

    @Override
    public ColumnarArray getArray(int row) {
      return new ColumnarArray(items, row * size, size);
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return items;
    }
  }

  private static final class Maps extends ArrowColumn {
    private final ArrowColumn keys;
    private final ArrowColumn values;
    private long offsets;

    Maps(MapVector vector, MapType type) {
      super(vector, type);
      StructVector entries = (StructVector) vector.getDataVector();
      this.keys = of((FieldVector) entries.getChildByOrdinal(0), type.keyType());
      this.values = of((FieldVector) entries.getChildByOrdinal(1), type.valueType());
    }

    @Override
    void bind() {
      super.bind();
      offsets = vector.getOffsetBuffer().memoryAddress();
      keys.bind();
      values.bind();
    }

    @Override
    public ColumnarMap getMap(int row) {
      int start = Platform.getInt(null, offsets + 4L * row);
      return new ColumnarMap(keys, values, start, Platform.getInt(null, offsets + 4L * row + 4) - start);
    }
  }

  private static final class Structs extends ArrowColumn {
    private final ArrowColumn[] children;

    Structs(StructVector vector, StructType type) {
      super(vector, type);
      this.children = new ArrowColumn[type.size()];
      for (int i = 0; i < children.length; i++) {
        children[i] = of((FieldVector) vector.getChildByOrdinal(i), type.fields()[i].dataType());
      }
    }

    @Override
    void bind() {
      super.bind();
      for (ArrowColumn child : children) {
        child.bind();
      }
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return children[ordinal];
    }
  }
}
