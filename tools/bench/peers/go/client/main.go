// grpc-go's xDS client as a client process of the comparison of calls: arguments in, calls, one line of figures out.
//
// It warms up, says "ready" and waits for a line, measures, and prints its figures as JSON. Calls are counted where they
// end and processor time is read at the same two moments. The messages are google.protobuf.BytesValue, which has the payload
// where the comparison's own message has it; the number of answers to a stream is an unknown field of it, and goes along.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	unary  = "/bench.Echo/Unary"
	stream = "/bench.Echo/Stream"
)

var streamDesc = grpc.StreamDesc{StreamName: "Stream", ServerStreams: true}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// options are the arguments of a client process.
type options struct {
	target      string
	size        int
	messages    int
	concurrency int
	warmUp      int
	span        int
	calls       int64
	threads     int
}

func parse() (options, error) {
	var o options
	flag.StringVar(&o.target, "target", "", "what is called: an xds:/// target")
	flag.IntVar(&o.size, "size", 0, "bytes of the payload, each way")
	flag.IntVar(&o.messages, "messages", 0, "server streaming of so many messages; 0 for unary calls")
	flag.IntVar(&o.concurrency, "concurrency", 0, "so many calls at a time")
	flag.IntVar(&o.warmUp, "warm-up", 0, "calls before any are measured, in milliseconds")
	flag.IntVar(&o.span, "span", 0, "how long is measured, in milliseconds")
	flag.Int64Var(&o.calls, "calls", 0, "measure so many calls instead")
	flag.IntVar(&o.threads, "threads", 0, "threads that calls are made on")
	flag.Parse()
	switch {
	case !strings.HasPrefix(o.target, "xds:///"):
		return o, fmt.Errorf("--target: expected an xds:/// target, found %q", o.target)
	case o.concurrency < 1 || o.threads < 1:
		return o, errors.New("--concurrency and --threads: expected a number from 1 on")
	case (o.span > 0) == (o.calls > 0):
		return o, errors.New("expected either --span or --calls")
	}
	return o, nil
}

// run is the whole process. The bootstrap is in the environment.
func run() error {
	options, err := parse()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(options.threads)
	conn, err := grpc.NewClient(options.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	caller := caller{conn: conn, options: options, request: request(options)}
	if _, err := caller.run(time.Duration(options.warmUp)*time.Millisecond, 0); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	figures, err := caller.run(time.Duration(options.span)*time.Millisecond, options.calls)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(figures)
}

// request is what every call sends.
func request(o options) *wrapperspb.BytesValue {
	payload := make([]byte, o.size)
	for i := range payload {
		payload[i] = 'k'
	}
	request := wrapperspb.Bytes(payload)
	if o.messages > 0 {
		count := protowire.AppendTag(nil, 2, protowire.VarintType)
		request.ProtoReflect().SetUnknown(protowire.AppendVarint(count, uint64(o.messages)))
	}
	return request
}

type caller struct {
	conn    *grpc.ClientConn
	options options
	request *wrapperspb.BytesValue
}

// figures are in seconds, as whoever started the process expects them.
type figures struct {
	Calls   int64   `json:"calls"`
	Elapsed float64 `json:"elapsed"`
	CPU     float64 `json:"cpu"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
}

// shared is what the goroutines of one span share.
type shared struct {
	started   atomic.Int64
	isOver    atomic.Bool
	ended     atomic.Int64
	latencies histogram
}

// run makes calls for so long, or so many of them if there is a number. The first that fails ends it.
func (c *caller) run(span time.Duration, calls int64) (figures, error) {
	shared := &shared{}
	failed := make(chan error, c.options.concurrency)
	var group sync.WaitGroup
	before, err := now(shared)
	if err != nil {
		return figures{}, err
	}
	for range c.options.concurrency {
		group.Go(func() {
			if err := c.calls(shared, calls); err != nil {
				failed <- err
				shared.isOver.Store(true)
			}
		})
	}
	var after moment
	if calls == 0 {
		time.Sleep(span)
		after, err = now(shared)
		shared.isOver.Store(true)
	}
	group.Wait()
	if calls > 0 {
		after, err = now(shared)
	}
	select {
	case err = <-failed:
	default:
	}
	if err != nil {
		return figures{}, err
	}
	return figures{
		Calls:   after.ended - before.ended,
		Elapsed: after.at.Sub(before.at).Seconds(),
		CPU:     (after.cpu - before.cpu).Seconds(),
		P50:     shared.latencies.quantile(0.5),
		P99:     shared.latencies.quantile(0.99),
		P999:    shared.latencies.quantile(0.999),
	}, nil
}

// calls makes one call after the other.
func (c *caller) calls(shared *shared, calls int64) error {
	began := time.Now()
	for !shared.isOver.Load() && (calls == 0 || shared.started.Add(1) <= calls) {
		if err := c.call(); err != nil {
			return err
		}
		ended := time.Now()
		shared.latencies.record(ended.Sub(began))
		shared.ended.Add(1)
		began = ended
	}
	return nil
}

func (c *caller) call() error {
	if c.options.messages > 0 {
		return c.stream()
	}
	response := new(wrapperspb.BytesValue)
	if err := c.conn.Invoke(context.Background(), unary, c.request, response); err != nil {
		return err
	}
	return c.check(1, 1, len(response.GetValue()))
}

func (c *caller) stream() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := c.conn.NewStream(ctx, &streamDesc, stream)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(c.request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	messages, bytes := 0, 0
	for {
		response := new(wrapperspb.BytesValue)
		err := stream.RecvMsg(response)
		if errors.Is(err, io.EOF) {
			return c.check(c.options.messages, messages, bytes)
		}
		if err != nil {
			return err
		}
		messages++
		bytes += len(response.GetValue())
	}
}

func (c *caller) check(expected, messages, bytes int) error {
	if messages == expected && bytes == expected*c.options.size {
		return nil
	}
	return fmt.Errorf("expected %d messages with %d bytes in all, found %d with %d",
		expected, expected*c.options.size, messages, bytes)
}

type moment struct {
	at    time.Time
	cpu   time.Duration
	ended int64
}

// now reads what the process has used so far: user and system time of all its threads.
func now(shared *shared) (moment, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return moment{}, err
	}
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return moment{at: time.Now(), cpu: cpu, ended: shared.ended.Load()}, nil
}
