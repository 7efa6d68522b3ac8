package dockerd

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// daemonConfig is the part of Docker's daemon.json that is set here. A file of
// our own replaces /etc/docker/daemon.json, whose settings would collide.
type daemonConfig struct {
	Hosts         []string          `json:"hosts"`
	DataRoot      string            `json:"data-root"`
	ExecRoot      string            `json:"exec-root"`
	PIDFile       string            `json:"pidfile"`
	Bridge        string            `json:"bridge"`
	FixedCIDR     string            `json:"fixed-cidr"`
	MTU           int               `json:"mtu,omitempty"`
	IPTables      bool              `json:"iptables"`
	IPMasq        bool              `json:"ip-masq"`
	StorageDriver string            `json:"storage-driver,omitempty"`
	CgroupParent  string            `json:"cgroup-parent"`
	ExecOpts      []string          `json:"exec-opts"`
	LogDriver     string            `json:"log-driver"`
	LogOpts       map[string]string `json:"log-opts"`
	LiveRestore   bool              `json:"live-restore"`
}

// writeConfig writes the engine's configuration file, which replaces all of the engine's defaults
// that concern the host's own Docker: sockets, folders, bridge and cgroup.
func writeConfig(m machine, opts Options, subnet netip.Prefix) error {
	cfg := daemonConfig{
		Hosts:         []string{"unix://" + m.socket()},
		DataRoot:      m.data(),
		ExecRoot:      m.execDir(),
		PIDFile:       m.pidFile(),
		Bridge:        m.bridge(),
		FixedCIDR:     subnet.String(),
		MTU:           smallestMTU(),
		StorageDriver: opts.StorageDriver,
		// One parent of its own makes the machine's containers findable, and
		// killable, without asking an engine that may be dead. With systemd as
		// the cgroup driver the parent would have to be a slice.
		CgroupParent: "/" + m.tag(),
		ExecOpts:     []string{"native.cgroupdriver=cgroupfs"},
		LogDriver:    "json-file",
		LogOpts:      map[string]string{"max-size": "50m", "max-file": "3"},
		LiveRestore:  opts.LiveRestore,
	}
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.config(), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write engine configuration: %w", err)
	}
	return nil
}

// smallestMTU returns the smallest MTU of the host's own interfaces, or 0 (the engine's default)
// for the usual 1500: packets of containers must fit the interface that they leave by.
func smallestMTU() int {
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0
	}
	mtu := 1500
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && i.MTU >= 1280 {
			mtu = min(mtu, i.MTU)
		}
	}
	if mtu == 1500 {
		return 0
	}
	return mtu
}

// environment returns the engine's environment: the proxy settings for pulls, and no variable
// that may be a secret.
func environment() []string {
	env := []string{"PATH=" + commandPath}
	passed := []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR"}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(passed, name) {
			env = append(env, kv)
		}
	}
	return env
}
