// How the calls went: since the start (GetClientAccumulatedStats), and for a block of consecutive calls from a
// request on (GetClientStats).

package main

import (
	"context"
	"encoding/base64"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// stats counts calls from their start to their end.
type stats struct {
	testpb.UnimplementedLoadBalancerStatsServiceServer
	mu       sync.Mutex
	total    map[kind]*testpb.LoadBalancerAccumulatedStatsResponse_MethodStats
	watchers map[*watcher]struct{}
}

// startedCall is a call in flight and the watchers that count it.
type startedCall struct {
	kind     kind
	watchers []*watcher
}

// outcome is how a call ended. The host name is empty if no server told it.
type outcome struct {
	code     codes.Code
	hostname string
	header   metadata.MD
	trailer  metadata.MD
}

func newStats() *stats {
	return &stats{
		total:    map[kind]*testpb.LoadBalancerAccumulatedStatsResponse_MethodStats{},
		watchers: map[*watcher]struct{}{},
	}
}

func (s *stats) start(kind kind) *startedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total[kind] == nil {
		s.total[kind] = &testpb.LoadBalancerAccumulatedStatsResponse_MethodStats{Result: map[int32]int32{}}
	}
	s.total[kind].RpcsStarted++
	call := &startedCall{kind: kind}
	for watcher := range s.watchers {
		if watcher.toStart > 0 {
			watcher.toStart--
			call.watchers = append(call.watchers, watcher)
		}
	}
	return call
}

func (s *stats) end(call *startedCall, outcome outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total[call.kind].Result[int32(outcome.code)]++
	for _, watcher := range call.watchers {
		watcher.count(call.kind, outcome)
	}
}

// GetClientAccumulatedStats tells of all calls since the start of the program.
func (s *stats) GetClientAccumulatedStats(context.Context, *testpb.LoadBalancerAccumulatedStatsRequest) (*testpb.LoadBalancerAccumulatedStatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	started, succeeded, failed := map[string]int32{}, map[string]int32{}, map[string]int32{}
	methods := map[string]*testpb.LoadBalancerAccumulatedStatsResponse_MethodStats{}
	for kind, total := range s.total {
		method := &testpb.LoadBalancerAccumulatedStatsResponse_MethodStats{
			RpcsStarted: total.RpcsStarted,
			Result:      map[int32]int32{},
		}
		name := kind.String()
		started[name] = total.RpcsStarted
		for code, count := range total.Result {
			method.Result[code] = count
			if codes.Code(code) == codes.OK {
				succeeded[name] += count
			} else {
				failed[name] += count
			}
		}
		methods[name] = method
	}
	return &testpb.LoadBalancerAccumulatedStatsResponse{
		NumRpcsStartedByMethod:   started,
		NumRpcsSucceededByMethod: succeeded,
		NumRpcsFailedByMethod:    failed,
		StatsPerMethod:           methods,
	}, nil
}

// GetClientStats tells of the calls that start next, when all of them ended or the time of the request is over.
func (s *stats) GetClientStats(ctx context.Context, request *testpb.LoadBalancerStatsRequest) (*testpb.LoadBalancerStatsResponse, error) {
	if request.GetNumRpcs() <= 0 {
		return &testpb.LoadBalancerStatsResponse{}, nil
	}
	watcher := newWatcher(request)
	s.mu.Lock()
	s.watchers[watcher] = struct{}{}
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, time.Duration(request.GetTimeoutSec())*time.Second)
	defer cancel()
	select {
	case <-watcher.done:
	case <-ctx.Done():
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, watcher)
	return watcher.close(), nil
}

// watcher counts one block of calls. The stats' lock guards it.
type watcher struct {
	toStart int32
	toEnd   int32
	keys    map[string]bool
	told    bool
	counts  *testpb.LoadBalancerStatsResponse
	done    chan struct{}
}

func newWatcher(request *testpb.LoadBalancerStatsRequest) *watcher {
	keys := map[string]bool{}
	for _, key := range request.GetMetadataKeys() {
		keys[strings.ToLower(strings.TrimSpace(key))] = true
	}
	return &watcher{
		toStart: request.GetNumRpcs(),
		toEnd:   request.GetNumRpcs(),
		keys:    keys,
		counts: &testpb.LoadBalancerStatsResponse{
			RpcsByPeer:   map[string]int32{},
			RpcsByMethod: map[string]*testpb.LoadBalancerStatsResponse_RpcsByPeer{},
		},
		done: make(chan struct{}),
	}
}

// count takes in a call that ended. One that comes after the request was answered changes nothing.
func (w *watcher) count(kind kind, outcome outcome) {
	if w.told {
		return
	}
	if outcome.code == codes.OK && outcome.hostname != "" {
		w.countPeer(kind, outcome)
	} else {
		w.counts.NumFailures++
	}
	w.toEnd--
	if w.toEnd == 0 {
		close(w.done)
	}
}

func (w *watcher) countPeer(kind kind, outcome outcome) {
	w.counts.RpcsByPeer[outcome.hostname]++
	method := w.counts.RpcsByMethod[methodNames[kind]]
	if method == nil {
		method = &testpb.LoadBalancerStatsResponse_RpcsByPeer{RpcsByPeer: map[string]int32{}}
		w.counts.RpcsByMethod[methodNames[kind]] = method
	}
	method.RpcsByPeer[outcome.hostname]++
	if len(w.keys) > 0 {
		w.keepMetadata(outcome)
	}
}

// keepMetadata keeps what the request asks for, one entry per call, so that a call without any can be told apart.
func (w *watcher) keepMetadata(outcome outcome) {
	var entries []*testpb.LoadBalancerStatsResponse_MetadataEntry
	keep := func(pairs metadata.MD, from testpb.LoadBalancerStatsResponse_MetadataType) {
		for key, values := range pairs {
			if !w.keys["*"] && !w.keys[key] {
				continue
			}
			for _, value := range values {
				if strings.HasSuffix(key, "-bin") {
					// The field holds text only.
					value = base64.StdEncoding.EncodeToString([]byte(value))
				}
				entries = append(entries, &testpb.LoadBalancerStatsResponse_MetadataEntry{Key: key, Value: value, Type: from})
			}
		}
	}
	keep(outcome.header, testpb.LoadBalancerStatsResponse_INITIAL)
	keep(outcome.trailer, testpb.LoadBalancerStatsResponse_TRAILING)
	if w.counts.MetadatasByPeer == nil {
		w.counts.MetadatasByPeer = map[string]*testpb.LoadBalancerStatsResponse_MetadataByPeer{}
	}
	peer := w.counts.MetadatasByPeer[outcome.hostname]
	if peer == nil {
		peer = &testpb.LoadBalancerStatsResponse_MetadataByPeer{}
		w.counts.MetadatasByPeer[outcome.hostname] = peer
	}
	peer.RpcMetadata = append(peer.RpcMetadata, &testpb.LoadBalancerStatsResponse_RpcMetadata{Metadata: entries})
}

// close ends the counting. What did not end by then counts as failed.
func (w *watcher) close() *testpb.LoadBalancerStatsResponse {
	w.told = true
	w.counts.NumFailures += w.toEnd
	return w.counts
}
