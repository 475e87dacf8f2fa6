// Package docs holds tests over the manual: every YAML block in it is loaded by what would load it, every command line of
// the program parses, every metric exists, and every link leads somewhere.
package docs
