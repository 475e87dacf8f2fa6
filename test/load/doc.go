// Package load drives a gRPC server that Envoy could ask and tells what came of it: who was answered how, how fast, and
// what it cost the processes involved. Benchmarks and drills stand on it.
//
// It has a closed loop, for the most that a server answers, and an open loop, for how a server answers at a given rate.
// It also starts what is driven: the program itself, built from the source, and beside it a bare gRPC server that always
// says yes, which is the most that any service on the same machine could reach.
package load
