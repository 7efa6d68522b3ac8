package ec2

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"berth/internal/control/cloud/cloudinit"
)

// Settings are the settings of a pool for EC2.
type Settings struct {
	// Images are the AMIs by region. An image has systemd, cloud-init, curl, a container engine and,
	// for GPUs, the driver and the container toolkit.
	Images map[string]string `json:"images"`
	// Subnets are the subnets by zone or by region; the subnet of the zone takes precedence. Without an
	// entry EC2 chooses a subnet of the default VPC.
	Subnets map[string]string `json:"subnets,omitempty"`
	// SecurityGroups are the ids of security groups by region.
	SecurityGroups map[string][]string `json:"security_groups,omitempty"`
	// InstanceProfile is the name of the instance profile; "": none.
	InstanceProfile string `json:"instance_profile,omitempty"`
	// KeyName is the name of the SSH key pair; "": none.
	KeyName string `json:"key_name,omitempty"`
	// RootDisk replaces the root disk of the image; nil: the image's.
	RootDisk *Disk `json:"root_disk,omitempty"`
	// Tags are additional tags of instances and their volumes.
	Tags map[string]string `json:"tags,omitempty"`
	// Agent is the program that the machine installs.
	Agent cloudinit.Agent `json:"agent"`
}

// Disk is a volume that ends with its instance.
type Disk struct {
	Device string `json:"device"` // the root device of the image, as /dev/xvda
	GiB    int32  `json:"gib"`
}

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
	if len(s.Images) == 0 {
		faults = append(faults, errors.New("images: name an image for each region"))
	}
	for _, region := range slices.Sorted(maps.Keys(s.Images)) {
		if image := s.Images[region]; !strings.HasPrefix(image, "ami-") {
			faults = append(faults, fmt.Errorf("images.%s %q: an image begins with ami-", region, image))
		}
	}
	for _, place := range slices.Sorted(maps.Keys(s.Subnets)) {
		if subnet := s.Subnets[place]; !strings.HasPrefix(subnet, "subnet-") {
			faults = append(faults, fmt.Errorf("subnets.%s %q: a subnet begins with subnet-", place, subnet))
		}
	}
	for _, region := range slices.Sorted(maps.Keys(s.SecurityGroups)) {
		for _, group := range s.SecurityGroups[region] {
			if !strings.HasPrefix(group, "sg-") {
				faults = append(faults, fmt.Errorf("security_groups.%s %q: an id begins with sg-", region, group))
			}
		}
	}
	if d := s.RootDisk; d != nil && (d.GiB < 1 || d.GiB > 65536 || !strings.HasPrefix(d.Device, "/dev/")) {
		faults = append(faults, fmt.Errorf(
			"root_disk %q of %d gib: allowed are a device such as /dev/xvda, and 1 to 65536", d.Device, d.GiB))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Tags)) {
		if key == "" || key == tagName || strings.HasPrefix(key, "aws:") || strings.HasPrefix(key, "berth:") {
			faults = append(faults, fmt.Errorf(
				"tags.%s: Name, and names that begin with aws: or berth:, are not allowed", key))
		}
	}
	return errors.Join(append(faults, s.Agent.Validate())...)
}
