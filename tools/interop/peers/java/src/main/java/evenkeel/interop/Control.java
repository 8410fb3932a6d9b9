package evenkeel.interop;

import com.google.gson.Gson;
import com.google.gson.JsonSyntaxException;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.Status;
import io.envoyproxy.controlplane.cache.NodeGroup;
import io.envoyproxy.controlplane.cache.Response;
import io.envoyproxy.controlplane.cache.Watch;
import io.envoyproxy.controlplane.cache.XdsRequest;
import io.envoyproxy.controlplane.cache.v3.SimpleCache;
import io.envoyproxy.controlplane.server.DiscoveryServerCallbacks;
import io.envoyproxy.controlplane.server.V3DiscoveryServer;
import io.envoyproxy.envoy.config.core.v3.Node;
import io.envoyproxy.envoy.service.discovery.v3.DeltaDiscoveryRequest;
import io.envoyproxy.envoy.service.discovery.v3.DiscoveryRequest;
import io.grpc.Server;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * java-control-plane as a control plane that a driver feeds over stdin: one JSON line is one configuration, in force
 * for every node. It serves ADS, state of the world and delta, on a free port of the loopback interface, tells
 * {@code version V} when a configuration is in force and {@code nack TYPE_URL MESSAGE} for every refusal, and ends
 * with stdin. Load reporting is not served.
 */
public final class Control {
  private static final String EVERY_NODE = "every node";

  /**
   * The cache answers a NACK with the same resources at once. Without a pause, one refused resource keeps client and
   * server spinning until the next configuration.
   */
  private static final long NACK_PAUSE_MS = 50;

  public static void main(String[] args) throws IOException {
    SimpleCache<String> cache = new GrpcCache();
    Server server =
        NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0))
            .permitKeepAliveTime(1, TimeUnit.SECONDS)
            .permitKeepAliveWithoutCalls(true)
            .addService(
                new V3DiscoveryServer(new Refusals(), cache).getAggregatedDiscoveryServiceImpl())
            .build()
            .start();
    say("listening on " + server.getPort());
    try {
      follow(cache);
    } catch (RuntimeException e) {
      System.err.println("control: " + e.getMessage());
      System.exit(1);
    }
    System.exit(0);
  }

  /** Puts each configuration in force as it comes, until there are no more. */
  private static void follow(SimpleCache<String> cache) throws IOException {
    Gson gson = new Gson();
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      if (line.isBlank()) {
        continue;
      }
      Configuration configuration = read(gson, line);
      try {
        cache.setSnapshot(EVERY_NODE, configuration.snapshot());
      } catch (InvalidProtocolBufferException e) {
        throw new IllegalArgumentException("version " + configuration.version + ": " + e.getMessage());
      }
      say("version " + configuration.version);
    }
  }

  private static Configuration read(Gson gson, String line) {
    String cause = "found null";
    try {
      Configuration configuration = gson.fromJson(line, Configuration.class);
      if (configuration != null && configuration.version != null && configuration.resources != null) {
        return configuration;
      }
    } catch (JsonSyntaxException e) {
      cause = e.getMessage();
    }
    throw new IllegalArgumentException("expected a configuration as one line of JSON: " + cause);
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  /**
   * The library's cache, for clients that ask for what they use. On an ADS stream it would hold back a response while
   * anything that was asked for is missing, and then forget who asked, so that a client which still names a removed
   * cluster would hear nothing of the others.
   */
  private static final class GrpcCache extends SimpleCache<String> {
    GrpcCache() {
      super(new OneGroup());
    }

    @Override
    public Watch createWatch(
        boolean ads,
        XdsRequest request,
        Set<String> knownResourceNames,
        Consumer<Response> responseConsumer,
        boolean hasClusterChanged,
        boolean allowDefaultEmptyEdsUpdate) {
      return super.createWatch(
          false,
          request,
          knownResourceNames,
          responseConsumer,
          hasClusterChanged,
          allowDefaultEmptyEdsUpdate);
    }
  }

  /** All nodes in one group, whatever their ids. */
  private static final class OneGroup implements NodeGroup<String> {
    @Override
    public String hash(Node node) {
      return EVERY_NODE;
    }
  }

  /** Tells of every NACK. */
  private static final class Refusals implements DiscoveryServerCallbacks {
    @Override
    public void onV3StreamRequest(long streamId, DiscoveryRequest request) {
      if (request.hasErrorDetail()) {
        tell(request.getTypeUrl(), request.getErrorDetail());
      }
    }

    @Override
    public void onV3StreamDeltaRequest(long streamId, DeltaDiscoveryRequest request) {
      if (request.hasErrorDetail()) {
        tell(request.getTypeUrl(), request.getErrorDetail());
      }
    }

    private static void tell(String typeUrl, Status refusal) {
      say("nack " + typeUrl + " " + refusal.getMessage().strip().replaceAll("\\s+", " "));
      try {
        Thread.sleep(NACK_PAUSE_MS);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }

  private Control() {}
}
