// Program client is gRPC's xDS interop client on grpc-go: it sends calls at a steady rate over its channels and
// answers on the stats port how they went. main.go holds the command line and the rhythm of the calls, calls.go
// what is called, stats.go how it went, policy.go the custom balancing policy of the published cases.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/admin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	_ "google.golang.org/grpc/xds" // the xds resolver, the policies and filters of xDS, and CSDS

	"evenkeel/interop/peers/go/internal/args"
)

// maxRate bounds the calls of each kind per second over all channels; a ticker cannot go much faster.
const maxRate = 1_000_000

type options struct {
	server         string
	qps            int
	channels       int
	statsPort      int
	kinds          string
	metadata       string
	timeoutSeconds int
	failOnFailure  bool
	printResponse  bool
	expectStatus   string
	secure         bool
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "client: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var opts options
	set := flag.NewFlagSet("client", flag.ContinueOnError)
	set.StringVar(&opts.server, "server", "localhost:8080", "target of the channels")
	set.IntVar(&opts.qps, "qps", 1, "calls of each kind per second and channel")
	set.IntVar(&opts.channels, "num_channels", 1, "number of channels")
	set.IntVar(&opts.statsPort, "stats_port", 8081, "port of the services that tell of the calls")
	set.StringVar(&opts.kinds, "rpc", "UnaryCall", "kinds of calls, comma separated")
	set.StringVar(&opts.metadata, "metadata", "", "metadata of the calls, as EmptyCall:key:value,UnaryCall:key:value")
	set.IntVar(&opts.timeoutSeconds, "rpc_timeout_sec", 20, "deadline of a call, in seconds")
	set.BoolVar(&opts.failOnFailure, "fail_on_failed_rpc", false, "end when a call fails after one that succeeded")
	set.BoolVar(&opts.failOnFailure, "fail_on_failed_rpcs", false, "the same, as the published description spells it")
	set.BoolVar(&opts.printResponse, "print_response", false, "print each response")
	set.StringVar(&opts.expectStatus, "expect_status", "OK", "status that counts as success, by name or number")
	set.BoolVar(&opts.secure, "secure_mode", false, "take security from the control plane")
	if err := args.Parse(set, os.Args[1:], os.Stderr); err != nil {
		return err
	}
	if opts.qps < 1 || opts.channels < 1 || opts.timeoutSeconds < 1 {
		return fmt.Errorf("expected --qps, --num_channels and --rpc_timeout_sec of 1 or more, found %d, %d and %d",
			opts.qps, opts.channels, opts.timeoutSeconds)
	}
	if opts.qps > maxRate/opts.channels {
		return fmt.Errorf("expected --qps times --num_channels of %d or less, found %d times %d", maxRate, opts.qps, opts.channels)
	}

	expected, err := parseCode(opts.expectStatus)
	if err != nil {
		return err
	}
	calls, err := parseCalls(opts.kinds, opts.metadata)
	if err != nil {
		return err
	}
	plan := newPlan(calls)
	stats := newStats()
	if err := serveStats(opts.statsPort, plan, stats); err != nil {
		return err
	}
	channels, err := dial(opts)
	if err != nil {
		return err
	}
	caller := &caller{
		stats:         stats,
		timeout:       time.Duration(opts.timeoutSeconds) * time.Second,
		expected:      expected,
		failOnFailure: opts.failOnFailure,
		printResponse: opts.printResponse,
	}
	beat(opts, plan, caller, channels)
	return nil
}

// serveStats serves how the calls went, what is called, and the admin services of grpc-go: channelz and CSDS.
func serveStats(port int, plan *plan, stats *stats) error {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return fmt.Errorf("--stats_port %d: %w", port, err)
	}
	server := grpc.NewServer()
	testpb.RegisterLoadBalancerStatsServiceServer(server, stats)
	testpb.RegisterXdsUpdateClientConfigureServiceServer(server, plan)
	if _, err := admin.Register(server); err != nil {
		return fmt.Errorf("admin services: %w", err)
	}
	go func() {
		fmt.Fprintf(os.Stderr, "client: stats server ended: %v\n", server.Serve(listener))
		os.Exit(1)
	}()
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)
	return nil
}

func dial(opts options) ([]testpb.TestServiceClient, error) {
	creds := insecure.NewCredentials()
	if opts.secure {
		var err error
		creds, err = xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
		if err != nil {
			return nil, fmt.Errorf("xds credentials: %w", err)
		}
	}
	channels := make([]testpb.TestServiceClient, opts.channels)
	for i := range channels {
		channel, err := open(opts.server, creds)
		if err != nil {
			return nil, err
		}
		channels[i] = channel
	}
	return channels, nil
}

func open(target string, creds credentials.TransportCredentials) (testpb.TestServiceClient, error) {
	channel, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, fmt.Errorf("channel to %q: %w", target, err)
	}
	return testpb.NewTestServiceClient(channel), nil
}

// beat goes round the channels, at a pace that gives each its rate, and sends one call of every kind. It does not
// end.
func beat(opts options, plan *plan, caller *caller, channels []testpb.TestServiceClient) {
	ticker := time.NewTicker(time.Second / time.Duration(opts.qps*opts.channels))
	for turn := 0; ; turn = (turn + 1) % len(channels) {
		<-ticker.C
		for _, call := range plan.calls() {
			started := caller.stats.start(call.kind)
			go caller.make(context.Background(), channels[turn], call, started)
		}
	}
}

// parseCode reads a status code by its name (UNAVAILABLE) or its number (14).
func parseCode(text string) (codes.Code, error) {
	var code codes.Code
	if code.UnmarshalJSON([]byte(text)) == nil || code.UnmarshalJSON([]byte(`"`+text+`"`)) == nil {
		return code, nil
	}
	return code, fmt.Errorf("--expect_status: expected the name or number of a status code, found %q", text)
}
