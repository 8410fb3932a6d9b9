package main

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// A block is of the calls that start after it was asked for, in the order of their starts.
func TestABlockOfCalls(t *testing.T) {
	stats := newStats()
	before := stats.start(emptyCall)
	block := newWatcher(&testpb.LoadBalancerStatsRequest{NumRpcs: 3, MetadataKeys: []string{"Cookie"}})
	stats.watchers[block] = struct{}{}
	first, second, third, after := stats.start(emptyCall), stats.start(unaryCall), stats.start(unaryCall), stats.start(unaryCall)

	stats.end(before, outcome{hostname: "a"})
	stats.end(after, outcome{hostname: "a"})
	stats.end(second, outcome{hostname: "b", header: metadata.Pairs("cookie", "x", "other", "y")})
	stats.end(first, outcome{code: codes.Unavailable})
	select {
	case <-block.done:
		t.Fatal("the block is done before its last call ended")
	default:
	}
	counts := block.close()
	stats.end(third, outcome{hostname: "c"})

	if len(counts.RpcsByPeer) != 1 || counts.RpcsByPeer["b"] != 1 || counts.RpcsByMethod["UnaryCall"].RpcsByPeer["b"] != 1 {
		t.Errorf("expected one call at b, found %v", counts)
	}
	if counts.NumFailures != 2 {
		t.Errorf("expected a failed call and one that did not end, found %d", counts.NumFailures)
	}
	kept := counts.MetadatasByPeer["b"].GetRpcMetadata()
	if len(kept) != 1 || len(kept[0].Metadata) != 1 || kept[0].Metadata[0].Value != "x" {
		t.Errorf("expected the cookie of one call, found %v", kept)
	}
}

func TestABlockEndsWithItsLastCall(t *testing.T) {
	stats := newStats()
	block := newWatcher(&testpb.LoadBalancerStatsRequest{NumRpcs: 1})
	stats.watchers[block] = struct{}{}
	stats.end(stats.start(emptyCall), outcome{hostname: "a"})
	<-block.done
	if counts := block.close(); counts.NumFailures != 0 || counts.RpcsByPeer["a"] != 1 {
		t.Errorf("expected one call at a, found %v", counts)
	}
}

func TestTheSumOfAllCalls(t *testing.T) {
	stats := newStats()
	stats.start(unaryCall)
	stats.end(stats.start(unaryCall), outcome{})
	stats.end(stats.start(unaryCall), outcome{code: codes.Unavailable})
	sum, err := stats.GetClientAccumulatedStats(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	method := sum.StatsPerMethod["UNARY_CALL"]
	if method.RpcsStarted != 3 || method.Result[0] != 1 || method.Result[14] != 1 {
		t.Errorf("expected 3 started, one OK and one UNAVAILABLE, found %v", method)
	}
	if sum.NumRpcsStartedByMethod["UNARY_CALL"] != 3 || sum.NumRpcsSucceededByMethod["UNARY_CALL"] != 1 || sum.NumRpcsFailedByMethod["UNARY_CALL"] != 1 {
		t.Errorf("expected 3 started, one succeeded and one failed, found %v", sum)
	}
}
