package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// The frames of an open loop say what grpc-go's client says: the server reads the same question, deadline and content type,
// also of later calls, whose headers refer to the first one's.
func TestLinesAskAsTheClientDoes(t *testing.T) {
	t.Parallel()
	const calls = 20
	type asked struct{ tenant, headers string }
	seen := make(chan asked, 2*calls)
	conns := serveAll(t, 1, func(ctx context.Context, q *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > patience {
			t.Errorf("deadline %v, %v, want one within %v", deadline, ok, patience)
		}
		contentType := strings.TrimSuffix(md.Get("content-type")[0], "+proto") // Envoy says nothing of it
		headers := fmt.Sprint(contentType, md.Get(":authority"), md.Get("te"))
		seen <- asked{q.GetDescriptors()[0].GetEntries()[1].GetValue(), headers}
		return rlsv3.RateLimitResponse_OK, nil
	})
	q := question(t, "e", 7)
	if _, err := (Closed{Callers: 1, Deadline: patience, Calls: calls}).Run(t.Context(), conns, q.Ask()); err != nil {
		t.Fatal(err)
	}
	open := Open{Rate: 1000, Deadline: patience, MaxInFlight: 1, Phases: []Phase{{Calls: calls}}}
	if reports, err := open.Run(t.Context(), conns, q); err != nil || reports[0].Count(Allowed) != calls {
		t.Fatalf("%v, want %d calls allowed", err, calls)
	}
	var client [calls]asked
	for i := range 2 * calls {
		if i < calls {
			client[i] = <-seen
		} else if got := <-seen; got != client[i-calls] {
			t.Errorf("call %d: %v, by grpc-go's client %v", i-calls, got, client[i-calls])
		}
	}
}

// More bytes than a server takes at once, and than the generator lets a server send at once: both windows are kept full.
func TestLinesKeepTheWindows(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 20_000)
	conns := serve(t, 2, func(_ context.Context, tenant string) (rlsv3.RateLimitResponse_Code, error) {
		if len(tenant) < len(long) {
			t.Errorf("a tenant of %d bytes", len(tenant))
		}
		return rlsv3.RateLimitResponse_OK, nil
	})
	q := question(t, "e", 1)
	message, err := proto.Marshal(rateLimitRequest("e", long))
	if err != nil {
		t.Fatal(err)
	}
	q.message = func(uint64) ([]byte, error) { return message, nil }
	const calls = 200 // 4 MB
	open := Open{Rate: 100_000, Deadline: patience, MaxInFlight: calls, Phases: []Phase{{Calls: calls}}}
	reports, err := open.Run(t.Context(), conns, q)
	if err != nil || reports[0].Count(Allowed) != calls {
		t.Errorf("%v, %d of %d allowed, late %d, failed %d: %v", err, reports[0].Count(Allowed), calls, reports[0].Count(Late), reports[0].Count(Failed), reports[0].Err())
	}
}

// A question that no server would take whole fails, instead of holding up the schedule.
func TestLinesRefuseWhatFitsIntoNoWindow(t *testing.T) {
	t.Parallel()
	conns := serve(t, 1, func(context.Context, string) (rlsv3.RateLimitResponse_Code, error) {
		return rlsv3.RateLimitResponse_OK, nil
	})
	q := question(t, "e", 1)
	q.message = func(uint64) ([]byte, error) { return make([]byte, firstWindow), nil }
	reports, err := Open{Rate: 1000, Deadline: patience, MaxInFlight: 1, Phases: []Phase{{Calls: 3}}}.Run(t.Context(), conns, q)
	if err != nil || reports[0].Count(Failed) != 3 {
		t.Errorf("%v, %d of 3 failed", err, reports[0].Count(Failed))
	}
}

// A call that is given up is reset: the server learns of it, as it does from Envoy.
func TestLinesResetLateCalls(t *testing.T) {
	t.Parallel()
	var canceled atomic.Int64
	conns := serve(t, 1, func(ctx context.Context, _ string) (rlsv3.RateLimitResponse_Code, error) {
		<-ctx.Done()
		canceled.Add(1)
		return rlsv3.RateLimitResponse_OK, nil
	})
	const calls, deadline = 20, 50 * time.Millisecond
	start := time.Now()
	reports, err := Open{Rate: 1000, Deadline: deadline, MaxInFlight: calls, Phases: []Phase{{Calls: calls}}}.Run(t.Context(), conns, question(t, "e", 1))
	if err != nil || reports[0].Count(Late) != calls {
		t.Fatalf("%v, %d of %d late", err, reports[0].Count(Late), calls)
	}
	if took := time.Since(start); reports[0].Latency.Quantile(0) < deadline || took < deadline {
		t.Errorf("given up after %v, all over after %v, want at least %v", reports[0].Latency.Quantile(0), took, deadline)
	}
	for until := time.Now().Add(patience); canceled.Load() < calls; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the server has ended %d of %d calls", canceled.Load(), calls)
		}
	}
}

// While the server is away calls fail at once; once it is back, the line is, too, and a phase may wait for that.
func TestLinesAreMadeAgain(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	ok := answering{answer: func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		return rlsv3.RateLimitResponse_OK, nil
	}}
	up := func(l net.Listener) *grpc.Server {
		server := grpc.NewServer()
		rlsv3.RegisterRateLimitServiceServer(server, ok)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		return server
	}
	server := up(l)
	conns, err := Dial(t.Context(), addr, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	open := Open{Rate: 1000, Deadline: patience, MaxInFlight: 100, Phases: []Phase{
		{Calls: 100},
		{Calls: 100, Before: func() error {
			server.Stop()
			time.Sleep(50 * time.Millisecond) // until the generator has read it
			return nil
		}},
		{Calls: 100, Connected: true, Before: func() error {
			l, err := net.Listen("tcp", addr)
			if err == nil {
				up(l)
			}
			return err
		}},
	}}
	reports, err := open.Run(t.Context(), conns, question(t, "e", 3))
	if err != nil {
		t.Fatal(err)
	}
	for phase, want := range []Outcome{Allowed, Failed, Allowed} {
		if got := reports[phase].Count(want); got < 98 { // some of the first were under way when it stopped
			t.Errorf("phase %d: %d of 100 calls ended in outcome %d", phase, got, want)
		}
	}
	if err := reports[1].Err(); status.Code(err) != codes.Unavailable {
		t.Errorf("without a server: %v", err)
	}
}

// Who answers with something else than HTTP/2, or with none of it, fails the call and not the run.
func TestLinesToNoServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(io.Discard, conn, 30)
				_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
				_ = conn.Close()
			}()
		}
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	reports, err := Open{Rate: 1000, Deadline: patience, MaxInFlight: 10, Phases: []Phase{{Calls: 50}}}.Run(t.Context(), Conns{conn}, question(t, "e", 1))
	if err != nil || reports[0].Count(Failed) != 50 {
		t.Errorf("%v, %d of 50 failed", err, reports[0].Count(Failed))
	}

	gone, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gone.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := (Open{Rate: 1, MaxInFlight: 1}).Run(ctx, Conns{gone}, question(t, "e", 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody there: %v", err)
	}
}
