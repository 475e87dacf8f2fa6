// Package envoy answers Envoy's two questions over gRPC: RateLimitService/ShouldRateLimit and Authorization/Check. It
// translates and nothing more: protobuf to rls.Request or rls.CheckRequest, the engine's answer back to protobuf.
//
// Envoy reads silence as consent: an empty answer, and by default a late one or an error, lets the request through. So
// everything here has one aim: whatever arrives, the engine is asked, and whatever it answers arrives.
//   - A codec repairs text that is not UTF-8, which the stock codec refuses before any handler runs.
//   - There is one constructor of answers per service, and an answer it cannot express is none.
//   - A guard around every call turns a panic, and an answer that is missing, empty or contradicts itself, into a counted
//     error.
//   - Nothing that a client or an identity provider wrote reaches a header, a limit's name or a body unescaped.
package envoy
