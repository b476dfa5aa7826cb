package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.function.Function;

/**
 * The Python process of this JVM: started when first needed, one per Python executable, ended with the JVM because its
 * standard input closes then. Calls go over a Unix socket, see headwater/spark/worker.py for the frames.
 */
final class Worker {
  private static final String TASKS = "tasks";
  private static final Map<String, Worker> WORKERS = new ConcurrentHashMap<>();

  private final String python;
  private final Process process;
  private final UnixDomainSocketAddress address;
  private final ConcurrentLinkedDeque<Connection> idle = new ConcurrentLinkedDeque<>();

  private Worker(String python) throws IOException {
    this.python = python;
    ProcessBuilder builder = new ProcessBuilder(List.of(python, "-P", "-m", "headwater.spark.worker"));
    builder.environment().putIfAbsent("LANCE_LOG", "error"); // a refused commit is told to the user, not logged
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    this.process = builder.start();
    BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    String line = out.readLine();
    if (line == null) {
      throw new IOException("it ended at once; is the package `headwater` installed for this Python?");
    }
    this.address = UnixDomainSocketAddress.of(Json.parse(line).get("socket").asText());
  }

  /** The worker of an executable, started again if it has died. */
  static Worker of(String python) {
    return WORKERS.compute(python, (key, known) -> {
      if (known != null && known.process.isAlive()) {
        return known;
      }
      try {
        return new Worker(key);
      } catch (IOException error) {
        throw new HeadwaterException(18, "The Python worker `" + key + " -P -m headwater.spark.worker` does not start: "
            + error.getMessage() + " Set PYSPARK_PYTHON or spark.headwater.python to a Python that has `headwater`.");
      }
    });
  }

  /** Start the worker of an executable beside this thread. The first call of one that does not start says why. */
  static void begin(String python) {
    Thread thread = new Thread(() -> {
      try {
        of(python);
      } catch (HeadwaterException error) {
        // the call that needs it throws the same
      }
    }, "headwater-worker-start");
    thread.setDaemon(true);
    thread.start();
  }

  /** One call and its answer. */
  JsonNode call(ObjectNode request) {
    return call(request, tasks -> Json.MAPPER.createArrayNode());
  }

  /** One call and its answer. An answer with `tasks` is a question: what they gave is sent back, and it goes on. */
  JsonNode call(ObjectNode request, Function<JsonNode, ArrayNode> run) {
    Connection connection = open();
    boolean done = false;
    boolean asked = false;
    try {
      connection.send(request);
      JsonNode answer = connection.receive();
      while (asked = isQuestion(answer)) {
        ArrayNode results = run.apply(answer.get(TASKS));
        asked = false;
        connection.send(results);
        answer = connection.receive();
      }
      done = true;
      return answer;
    } catch (HeadwaterException error) {
      done = !asked;
      throw error;
    } catch (IOException error) {
      throw lost(error);
    } finally {
      connection.release(done);
    }
  }

  private static boolean isQuestion(JsonNode answer) {
    return answer != null && answer.size() == 1 && answer.has(TASKS);
  }

  Connection open() {
    Connection known = idle.pollFirst();
    if (known != null) {
      return known;
    }
    try {
      return new Connection(SocketChannel.open(address));
    } catch (IOException error) {
      throw lost(error);
    }
  }

  private HeadwaterException lost(IOException error) {
    String state = process.isAlive() ? "does not answer" : "has ended";
    return new HeadwaterException(17, "The Python worker " + python + " " + state + ": " + error.getMessage()
        + ". Its own output is in the log of this process.");
  }

  /** A connection, used by one task at a time and given back when its call is complete. */
  final class Connection {
    final SocketChannel channel;

    private Connection(SocketChannel channel) {
      this.channel = channel;
    }

    void send(JsonNode request) throws IOException {
      byte[] body = Json.MAPPER.writeValueAsBytes(request);
      ByteBuffer frame = ByteBuffer.allocate(4 + body.length);
      frame.putInt(body.length).put(body).flip();
      while (frame.hasRemaining()) {
        channel.write(frame);
      }
    }

    /** The value of the next answer, or its error thrown. */
    JsonNode receive() throws IOException {
      int size = read(4).getInt();
      JsonNode answer = Json.MAPPER.readTree(read(size).array());
      JsonNode error = answer.get("error");
      if (error != null) {
        throw new HeadwaterException(error.get("code").asInt(), error.get("message").asText());
      }
      return answer.get("ok");
    }

    private ByteBuffer read(int size) throws IOException {
      ByteBuffer buffer = ByteBuffer.allocate(size);
      while (buffer.hasRemaining()) {
        if (channel.read(buffer) < 0) {
          throw new IOException("the connection was closed");
        }
      }
      return buffer.flip();
    }

    /** Give the connection back if its call is complete; otherwise close it, which stops the call. */
    void release(boolean complete) {
      if (complete && channel.isOpen()) {
        idle.addFirst(this);
        return;
      }
      try {
        channel.close();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
