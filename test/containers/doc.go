// Package containers holds the tests of the container image and of examples/docker-compose.yaml, on a real Docker engine.
//
// It is a module of its own, so that testcontainers-go weighs on nobody who only builds sentinel-rls. `make containers`
// builds the image, finds or starts an engine and runs them; docs/containers.md says how. Run by themselves they use the
// engine that answers and the images that these variables name:
//
//	IMAGE_SENTINEL   the image under test; sentinel-rls:dev, as `make image` builds it
//	IMAGE_REDIS      redis:7.4-alpine
//	IMAGE_ENVOY      envoyproxy/envoy:v1.40.0
//	IMAGE_PULL       when compose asks the registry for the latter two: missing, or never
//
// Without an engine every test is skipped and says why; with REQUIRE_CONTAINERS set it fails.
package containers
