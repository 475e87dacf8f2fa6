package testserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
)

// Ports are drawn below the kernel's ephemeral range (Linux: from 32768). Inside it, the port of a killed server could
// be taken by any outgoing connection before the restart, and a client that keeps dialling it could connect to itself.
const (
	firstPort = 15000
	lastPort  = 30000
)

// FreePort returns a loopback TCP port that nothing listens on. Another process may take it before the caller does, so
// callers that can retry should.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		var l net.Listener
		if l, err = net.Listen("tcp", LoopbackAddr(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free loopback port: %w", err)
}

// LoopbackAddr returns "127.0.0.1:port".
func LoopbackAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portTaken says whether a server's output tells that another process took its port first.
func portTaken(log string) bool { return strings.Contains(log, "Address already in use") }
