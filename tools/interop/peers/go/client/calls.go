// What is called: the kinds of calls with their metadata and deadline, from the command line first and later from
// XdsUpdateClientConfigureService, and the making of one call.

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// kind is which method is called. Its number is that of ClientConfigureRequest.RpcType.
type kind = testpb.ClientConfigureRequest_RpcType

const (
	emptyCall = testpb.ClientConfigureRequest_EMPTY_CALL
	unaryCall = testpb.ClientConfigureRequest_UNARY_CALL
)

// methodNames are the names on the command line and in the stats by method.
var methodNames = map[kind]string{emptyCall: "EmptyCall", unaryCall: "UnaryCall"}

// call is one kind of call as it is sent at every beat.
type call struct {
	kind     kind
	metadata metadata.MD
	// timeout is 0 for the one of the command line.
	timeout time.Duration
}

// parseCalls reads --rpc and --metadata.
func parseCalls(kinds, pairs string) ([]call, error) {
	var calls []call
	for _, name := range strings.Split(kinds, ",") {
		kind, err := parseKind(name)
		if err != nil {
			return nil, fmt.Errorf("--rpc: %w", err)
		}
		calls = append(calls, call{kind: kind, metadata: metadata.MD{}})
	}
	if pairs == "" {
		return calls, nil
	}
	for _, entry := range strings.Split(pairs, ",") {
		parts := strings.SplitN(entry, ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("--metadata: expected METHOD:KEY:VALUE, found %q", entry)
		}
		kind, err := parseKind(parts[0])
		if err != nil {
			return nil, fmt.Errorf("--metadata: %w", err)
		}
		addMetadata(calls, kind, parts[1], parts[2])
	}
	return calls, nil
}

func parseKind(name string) (kind, error) {
	for kind, known := range methodNames {
		if name == known {
			return kind, nil
		}
	}
	return 0, fmt.Errorf("expected EmptyCall or UnaryCall, found %q", name)
}

func addMetadata(calls []call, kind kind, key, value string) {
	for _, call := range calls {
		if call.kind == kind {
			call.metadata.Append(key, value)
		}
	}
}

// plan is what is sent at every beat. A configuration replaces it whole.
type plan struct {
	testpb.UnimplementedXdsUpdateClientConfigureServiceServer
	current atomic.Pointer[[]call]
}

func newPlan(calls []call) *plan {
	plan := &plan{}
	plan.current.Store(&calls)
	return plan
}

func (p *plan) calls() []call { return *p.current.Load() }

// Configure takes effect with the next beat.
func (p *plan) Configure(_ context.Context, request *testpb.ClientConfigureRequest) (*testpb.ClientConfigureResponse, error) {
	if request.GetTimeoutSec() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "timeout_sec: expected 0 or more, found %d", request.GetTimeoutSec())
	}
	timeout := time.Duration(request.GetTimeoutSec()) * time.Second
	var calls []call
	for _, kind := range request.GetTypes() {
		if _, ok := methodNames[kind]; !ok {
			return nil, status.Errorf(codes.InvalidArgument, "types: expected EMPTY_CALL or UNARY_CALL, found %v", kind)
		}
		calls = append(calls, call{kind: kind, metadata: metadata.MD{}, timeout: timeout})
	}
	for _, pair := range request.GetMetadata() {
		addMetadata(calls, pair.GetType(), pair.GetKey(), pair.GetValue())
	}
	p.current.Store(&calls)
	return &testpb.ClientConfigureResponse{}, nil
}

// caller makes calls.
type caller struct {
	stats         *stats
	timeout       time.Duration
	expected      codes.Code
	failOnFailure bool
	printResponse bool
	succeeded     atomic.Bool
}

// make makes one call, tells the stats and follows the flags about what failed and what is printed.
func (c *caller) make(ctx context.Context, channel testpb.TestServiceClient, call call, started *startedCall) {
	ctx, cancel := c.withDeadline(metadata.NewOutgoingContext(ctx, call.metadata), call)
	defer cancel()
	var outcome outcome
	var server peer.Peer
	fromCall := []grpc.CallOption{grpc.Header(&outcome.header), grpc.Trailer(&outcome.trailer), grpc.Peer(&server)}
	var err error
	switch call.kind {
	case unaryCall:
		var response *testpb.SimpleResponse
		response, err = channel.UnaryCall(ctx, &testpb.SimpleRequest{FillServerId: true}, fromCall...)
		outcome.hostname = response.GetHostname()
	case emptyCall:
		_, err = channel.EmptyCall(ctx, &testpb.Empty{}, fromCall...)
	}
	if names := outcome.header.Get("hostname"); len(names) > 0 {
		outcome.hostname = names[0]
	}
	outcome.code = status.Code(err)
	c.stats.end(started, outcome)

	if c.printResponse && err == nil {
		fmt.Printf("Greeting: Hello world, this is %s, from %v\n", outcome.hostname, server.Addr)
	} else if c.printResponse {
		fmt.Printf("%s failed: %v\n", methodNames[call.kind], err)
	}
	if outcome.code == c.expected {
		c.succeeded.Store(true)
	} else if c.failOnFailure && c.succeeded.Load() {
		fmt.Fprintf(os.Stderr, "client: %s: expected status %v, found %v: %v\n", methodNames[call.kind], c.expected, outcome.code, err)
		os.Exit(1)
	}
}

// withDeadline gives a call the deadline of its configuration, else that of the command line. A call that the
// server is asked to keep open has none of its own, so that it stays in flight.
func (c *caller) withDeadline(ctx context.Context, call call) (context.Context, context.CancelFunc) {
	if call.timeout > 0 {
		return context.WithTimeout(ctx, call.timeout)
	}
	if slices.Contains(call.metadata.Get("rpc-behavior"), "keep-open") {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.timeout)
}
