package gce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/control/cloud/cloudinit"
	"berth/spec"
)

// Settings are the settings of a pool for GCE.
type Settings struct {
	// Image is an image or a family of images: projects/PROJECT/global/images/NAME, or
	// projects/PROJECT/global/images/family/NAME. An image has systemd, cloud-init, curl, a container
	// engine and, for GPUs, the driver and the container toolkit.
	Image string `json:"image"`
	// Network is a network of the project, as global/networks/default; "": that of the subnetwork, or
	// the project's default network.
	Network string `json:"network,omitempty"`
	// Subnetworks are the subnetworks by region, as regions/REGION/subnetworks/NAME, optionally after
	// projects/PROJECT/.
	Subnetworks map[string]string `json:"subnetworks,omitempty"`
	// ExternalIP gives machines an external address.
	ExternalIP bool `json:"external_ip,omitempty"`
	// NetworkTags select firewall rules of the network.
	NetworkTags []string `json:"network_tags,omitempty"`
	// ServiceAccount is the e-mail address of the machines' service account; "": none.
	ServiceAccount string `json:"service_account,omitempty"`
	// Scopes are the OAuth scopes of the service account; empty: cloud-platform, so that the roles of the
	// account alone decide.
	Scopes []string `json:"scopes,omitempty"`
	// Disk is the boot disk; nil: of the image's size and GCE's default type.
	Disk *Disk `json:"disk,omitempty"`
	// MaxRunDuration is the time after which GCE deletes the instance; 0: never.
	MaxRunDuration spec.Duration `json:"max_run_duration,omitempty"`
	// StopForMaintenance stops machines without GPUs for maintenance of their host, where GCE cannot
	// migrate them. Spot machines and known GPU types always stop.
	StopForMaintenance bool `json:"stop_for_maintenance,omitempty"`
	// Labels are additional labels of instances and their disks.
	Labels map[string]string `json:"labels,omitempty"`
	// Metadata are additional metadata items of instances.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Agent is the program that the machine installs.
	Agent cloudinit.Agent `json:"agent"`
}

// Disk is a boot disk that ends with its instance.
type Disk struct {
	GiB  int64  `json:"gib"`
	Type string `json:"type,omitempty"` // as pd-balanced; "": GCE's default
}

// Limits of GCE, and of Berth where GCE has none.
const (
	leastRun = 30 * time.Second
	mostRun  = 120 * 24 * time.Hour
	mostDisk = 65536 // GiB
)

// Forms of the names of GCE.
var (
	images      = regexp.MustCompile(`^projects/[a-z0-9.:-]+/global/images/(family/)?[a-z][a-z0-9-]{0,62}$`)
	networks    = regexp.MustCompile(`^(projects/[a-z0-9.:-]+/)?global/networks/[a-z][a-z0-9-]{0,62}$`)
	subnetworks = regexp.MustCompile(
		`^(?:projects/[a-z0-9.:-]+/)?regions/([a-z0-9-]+)/subnetworks/[a-z][a-z0-9-]{0,62}$`)
	accounts    = regexp.MustCompile(`^[a-z0-9._-]+@[a-z0-9.-]+$`)
	words       = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	labelKeys   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValues = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	itemKeys    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,127}$`)
)

// ParseSettings decodes the settings of a pool. The error has every fault.
func ParseSettings(text json.RawMessage) (Settings, error) {
	var s Settings
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("they are empty")
		}
		return Settings{}, fmt.Errorf("settings of the pool: %w", err)
	}
	if err := s.validate(); err != nil {
		return Settings{}, fmt.Errorf("settings of the pool: %w", err)
	}
	return s, nil
}

// validate reports every fault that shows without a call to the cloud.
func (s Settings) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !images.MatchString(s.Image) {
		fault("image %q: allowed are projects/PROJECT/global/images/NAME and "+
			"projects/PROJECT/global/images/family/NAME", s.Image)
	}
	if s.Network != "" && !networks.MatchString(s.Network) {
		fault("network %q: allowed is global/networks/NAME, also after projects/PROJECT/", s.Network)
	}
	for _, region := range slices.Sorted(maps.Keys(s.Subnetworks)) {
		name := s.Subnetworks[region]
		if m := subnetworks.FindStringSubmatch(name); m == nil || m[1] != region {
			fault("subnetworks.%s %q: allowed is regions/%s/subnetworks/NAME, also after projects/PROJECT/", region,
				name, region)
		}
	}
	for _, tag := range s.NetworkTags {
		if !words.MatchString(tag) {
			fault("network_tags %q: allowed are lower-case letters, digits and hyphens, from a letter on", tag)
		}
	}
	if s.ServiceAccount != "" && !accounts.MatchString(s.ServiceAccount) {
		fault("service_account %q: allowed is the e-mail address of a service account", s.ServiceAccount)
	}
	if s.ServiceAccount == "" && len(s.Scopes) > 0 {
		fault("scopes: they need a service_account")
	}
	for _, scope := range s.Scopes {
		if !strings.HasPrefix(scope, "https://www.googleapis.com/auth/") {
			fault("scopes %q: a scope begins with https://www.googleapis.com/auth/", scope)
		}
	}
	if d := s.Disk; d != nil && (d.GiB < 1 || d.GiB > mostDisk || d.Type != "" && !words.MatchString(d.Type)) {
		fault("disk of %d gib, type %q: allowed are 1 to %d, and a type such as pd-balanced", d.GiB, d.Type, mostDisk)
	}
	if d := time.Duration(s.MaxRunDuration); d != 0 && (d < leastRun || d > mostRun || d%time.Second != 0) {
		fault("max_run_duration %s: allowed are whole seconds from %s to %s", d, leastRun, mostRun)
	}
	faults = append(faults, s.validateMarks()...)
	return errors.Join(append(faults, s.Agent.Validate())...)
}

// validateMarks validates labels and metadata.
func (s Settings) validateMarks() (faults []error) {
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		value := s.Labels[key]
		if !labelKeys.MatchString(key) || !labelValues.MatchString(value) || strings.HasPrefix(key, ours) {
			faults = append(faults, fmt.Errorf("labels.%s %q: allowed are up to 63 lower-case letters, digits, "+
				"hyphens and underscores; a key begins with a letter, and not with %s", key, value, ours))
		}
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Metadata)) {
		size += len(key) + len(s.Metadata[key])
		if !itemKeys.MatchString(key) || strings.HasPrefix(key, ours) || key == itemUserData {
			faults = append(faults, fmt.Errorf("metadata.%s: allowed are letters, digits, hyphens and underscores; "+
				"keys that begin with %s, and %s, are set by Berth", key, ours, itemUserData))
		}
	}
	if size > maxMetadata {
		faults = append(faults, fmt.Errorf("metadata: keys and values have %d bytes; allowed are %d", size,
			maxMetadata))
	}
	return faults
}
