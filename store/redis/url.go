package redis

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// topology is how many servers there are and how they share the keys.
type topology uint8

const (
	standalone topology = iota // one server, with or without replicas that nobody is told about
	failover                   // a master that Redis Sentinel names
	clustered                  // Redis Cluster
)

// target is what a URL names.
type target struct {
	topology  topology
	tls       bool
	username  string
	password  string
	addresses []string // host:port of the server, of each sentinel, or of some nodes of the cluster
	socket    string   // the path of a unix socket, instead of addresses
	master    string   // by which the sentinels know it
	db        int
}

const urlForm = "must be redis://[user:password@]host[:port][/db], redis+sentinel://host[:port],…/master[/db], " +
	"redis+cluster://host[:port],…, the same with rediss for TLS, or unix:///path[?db=n]"

var schemes = map[string]target{
	"redis":           {topology: standalone},
	"rediss":          {topology: standalone, tls: true},
	"redis+sentinel":  {topology: failover},
	"rediss+sentinel": {topology: failover, tls: true},
	"redis+cluster":   {topology: clustered},
	"rediss+cluster":  {topology: clustered, tls: true},
}

const (
	defaultPort         = "6379"
	defaultSentinelPort = "26379"

	// maxHosts bounds the hosts of a URL: sentinels are three or five, and of a cluster a few nodes name all others.
	maxHosts = 64
)

// parseURL reads the URL of a store. Errors never show it, since it may hold a password.
func parseURL(text string) (target, error) {
	if text == "" {
		return target{}, errors.New("no URL: " + urlForm)
	}
	scheme, rest, _ := strings.Cut(text, "://")
	// The package net/url knows no list of hosts.
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	all := strings.Split(hosts, ",")
	u, err := url.Parse(scheme + "://" + user + all[0] + path)
	if err != nil {
		return target{}, errors.New("the URL is malformed: " + urlForm)
	}
	if scheme == "unix" {
		return parseSocket(u)
	}
	t, ok := schemes[u.Scheme]
	if !ok {
		return target{}, errors.New("the URL has another scheme: " + urlForm)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return target{}, errOptions
	}
	t.username, t.password = credentials(u)
	if t.addresses, err = t.parseHosts(all); err != nil {
		return target{}, err
	}
	return t, t.parsePath(u.Path)
}

var errOptions = errors.New("the URL has options: every option is a setting of its own")

func parseSocket(u *url.URL) (t target, err error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return t, errors.New("the URL is malformed: " + urlForm)
	}
	if u.Host != "" || u.Path == "" {
		return t, errors.New("the URL names no socket: unix:///path has three slashes")
	}
	db := query.Get("db")
	query.Del("db")
	if len(query) > 0 || u.Fragment != "" {
		return t, errOptions
	}
	t.socket = u.Path
	t.username, t.password = credentials(u)
	return t, t.parseDB(db)
}

func credentials(u *url.URL) (username, password string) {
	password, _ = u.User.Password()
	return u.User.Username(), password
}

// parseHosts completes hosts with their default port.
func (t *target) parseHosts(hosts []string) ([]string, error) {
	if len(hosts) > 1 && t.topology == standalone {
		return nil, errors.New("the URL names several hosts: that is for redis+sentinel:// and redis+cluster://")
	}
	if len(hosts) > maxHosts {
		return nil, errors.New("the URL names more than " + strconv.Itoa(maxHosts) + " hosts")
	}
	port := defaultPort
	if t.topology == failover {
		port = defaultSentinelPort
	}
	addresses := make([]string, len(hosts))
	for i, host := range hosts {
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Host != host || u.Hostname() == "" {
			return nil, errors.New("the URL names no host, or not in the form host:port: " + urlForm)
		}
		addresses[i] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
		if slices.Contains(addresses[:i], addresses[i]) {
			return nil, errors.New("the URL names a host twice")
		}
	}
	return addresses, nil
}

func (t *target) parsePath(path string) error {
	path = strings.TrimPrefix(path, "/")
	switch t.topology {
	case failover:
		var db string
		t.master, db, _ = strings.Cut(path, "/")
		if t.master == "" {
			return errors.New("the URL names no master: redis+sentinel://host[:port],…/master")
		}
		return t.parseDB(db)
	case clustered:
		if path != "" && path != "0" {
			return errors.New("the URL names a database: a cluster has only the database 0")
		}
		return nil
	default:
		return t.parseDB(path)
	}
}

func (t *target) parseDB(text string) error {
	if text == "" {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return errors.New("the URL names no database: it is a number such as /0")
	}
	t.db = int(n)
	return nil
}
