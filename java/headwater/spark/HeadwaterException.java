package headwater.spark;

/**
 * An error told by the Python worker, with its code in the Lance error table. PySpark shows an IllegalArgumentException
 * by its message alone, which here says all there is to say.
 */
public final class HeadwaterException extends IllegalArgumentException {
  static final int NAMESPACE_NOT_FOUND = 1;
  static final int NAMESPACE_EXISTS = 2;
  static final int NAMESPACE_NOT_EMPTY = 3;
  static final int TABLE_NOT_FOUND = 4;
  static final int TABLE_EXISTS = 5;
  static final int COLUMN_NOT_FOUND = 12;
  static final int INVALID_INPUT = 13;
  static final int PERMISSION_DENIED = 15;

  private final int code;

  HeadwaterException(int code, String message) {
    super(message);
    this.code = code;
  }

  public int code() {
    return code;
  }
}
