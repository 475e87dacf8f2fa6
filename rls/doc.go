// Package rls is the engine: it matches a request with its policies, takes from their limits through a Store, combines
// the verdicts and records what happened. Its guard keeps every answer inside the caller's deadline: a budget for the
// store, a circuit breaker, and a bounded emergency cap for the time the store cannot answer.
package rls
