package gce

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudinit"
)

// ours is the prefix of the labels and metadata items of Berth.
const ours = "berth-"

// Labels select instances in lists and in Google's tools. Their values are encoded: GCE allows few
// characters in them. The exact values are in metadata items, which are part of the insert as well: an
// instance without them cannot exist, not even for a moment.
const (
	labelCluster = ours + "cluster"
	labelPool    = ours + "pool"
	labelMachine = ours + "machine"

	itemCluster = ours + "cluster"
	itemPool    = ours + "pool"
	itemMachine = ours + "machine"
	itemN       = ours + "launch"
	itemToken   = ours + "token"
	itemType    = ours + "type" // of the offering, with its accelerators
	// itemHash is the hash of the launch, by which Create recognizes an instance of the same launch.
	itemHash     = ours + "hash"
	itemUserData = "user-data" // read by cloud-init
)

const (
	// maxUserData is the limit of GCE for the value of a metadata item, in bytes.
	maxUserData = 256 << 10
	// maxMetadata is the limit for all items of a pool's settings, in bytes. GCE allows 512 KiB for all
	// items of an instance.
	maxMetadata = 64 << 10
)

// label returns a value as a label: the value itself if GCE allows it, else a hash.
func label(value string) string {
	if labelValues.MatchString(value) {
		return value
	}
	sum := sha256.Sum256([]byte(value))
	return "x-" + hex.EncodeToString(sum[:16])
}

// requestID returns the request id of a launch: its token as a UUID of version 8. 122 of the 128 bits
// remain, as GCE requires a valid UUID.
func requestID(token string) (string, error) {
	b, err := hex.DecodeString(token)
	if err != nil || len(b) != 16 {
		return "", fmt.Errorf("token %q: it must be 32 hex digits", token)
	}
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}

const (
	maxName   = 63
	tokenPart = 12 // hex digits of the token in a name
)

var notInNames = regexp.MustCompile(`[^a-z0-9-]`)

// nameOf returns the name of a launch's instance, of machine, number and token. While the instance exists,
// GCE refuses another one with the name in the zone. The token's part differs for clusters
// and for restored databases that use one machine name.
func nameOf(l cloud.Launch) string {
	end := fmt.Sprintf("-%d-%s", l.N, l.Token[:min(tokenPart, len(l.Token))])
	name := notInNames.ReplaceAllString(strings.ToLower(string(l.Machine)), "-")
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		name = "m" + name
	}
	return name[:min(len(name), maxName-len(end))] + end
}

// zones are the names of zones. The last part is the zone's own.
var zones = regexp.MustCompile(`^[a-z]+(-[a-z]+)*[0-9]+-[a-z][a-z0-9]*$`)

// checkPlace validates region and zone of an offering.
func checkPlace(o cloud.Offering) error {
	if o.Zone == "" {
		return fmt.Errorf("offering %s has no zone: GCE creates an instance in a zone, such as europe-west4-b", o)
	}
	if !zones.MatchString(o.Zone) || regionOf(o.Zone) != o.Region {
		return fmt.Errorf("offering %s: zone %q is no zone of region %q", o, o.Zone, o.Region)
	}
	return nil
}

// regionOf returns the region of a zone, or of the path of a zone or a region; "": of another place.
func regionOf(place string) string {
	kind, name := path.Base(path.Dir(place)), path.Base(place)
	if kind == "regions" {
		return name
	}
	if !zones.MatchString(name) {
		return ""
	}
	return name[:strings.LastIndexByte(name, '-')]
}

// place is where an instance is found. Its text is the id of the instance.
type place struct {
	zone, name string
	number     uint64 // of GCE, for one instance for good
}

// String returns the id: zone/name/number.
func (p place) String() string { return fmt.Sprintf("%s/%s/%d", p.zone, p.name, p.number) }

// parseID reads the id of an instance.
func parseID(id string) (place, error) {
	parts := strings.Split(id, "/")
	if len(parts) == 3 && zones.MatchString(parts[0]) && words.MatchString(parts[1]) {
		if number, err := strconv.ParseUint(parts[2], 10, 64); err == nil && number > 0 {
			return place{parts[0], parts[1], number}, nil
		}
	}
	return place{}, fmt.Errorf("id %q: it must be ZONE/NAME/NUMBER", id)
}

// types are the types of offerings: a machine type, optionally with accelerators, as
// n1-standard-8+2xnvidia-tesla-t4.
var types = regexp.MustCompile(`^([a-z][a-z0-9-]*)(?:\+([1-9][0-9]?)x([a-z][a-z0-9-]*))?$`)

// gpuFamilies are the prefixes of machine types with GPUs of their own.
var gpuFamilies = regexp.MustCompile(`^(a[2-9][a-z]*|g[2-9][a-z]*)-`)

// request builds the request of a launch. The result depends only on the launch and the project.
func (p *Provider) request(l cloud.Launch) (*computepb.InsertInstanceRequest, error) {
	s, err := ParseSettings(l.Settings)
	if err != nil {
		return nil, err
	}
	o := l.Offering
	if err := checkPlace(o); err != nil {
		return nil, err
	}
	id, err := requestID(l.Token)
	if err != nil {
		return nil, err
	}
	kind := types.FindStringSubmatch(o.Type)
	if kind == nil {
		return nil, fmt.Errorf("type %q: allowed are a machine type such as g2-standard-8, and one with accelerators "+
			"such as n1-standard-8+2xnvidia-tesla-t4", o.Type)
	}
	if len(s.Subnetworks) > 0 && s.Subnetworks[o.Region] == "" {
		return nil, fmt.Errorf("settings of the pool: subnetworks has no entry for region %s", o.Region)
	}
	userData, err := userDataOf(l, s)
	if err != nil {
		return nil, err
	}
	labels := labelsOf(l, s)
	i := &computepb.Instance{
		Name: proto.String(nameOf(l)), MachineType: proto.String("zones/" + o.Zone + "/machineTypes/" + kind[1]),
		Labels: labels, Metadata: items(l, s, string(userData)), Disks: s.disks(o, labels),
		NetworkInterfaces: []*computepb.NetworkInterface{s.network(o)}, Scheduling: s.scheduling(o, kind),
	}
	if kind[2] != "" {
		n, _ := strconv.ParseInt(kind[2], 10, 32) // by the expression one or two digits
		i.GuestAccelerators = []*computepb.AcceleratorConfig{{
			AcceleratorCount: proto.Int32(int32(n)),
			AcceleratorType:  proto.String("zones/" + o.Zone + "/acceleratorTypes/" + kind[3]),
		}}
	}
	if len(s.NetworkTags) > 0 {
		i.Tags = &computepb.Tags{Items: s.NetworkTags}
	}
	s.identity(i)
	return &computepb.InsertInstanceRequest{
		Project: p.o.Project, Zone: o.Zone, RequestId: proto.String(id), InstanceResource: i,
	}, nil
}

// userDataOf returns what cloud-init does on the new machine.
func userDataOf(l cloud.Launch, s Settings) ([]byte, error) {
	if l.Bootstrap.Identity != nil && s.ServiceAccount == "" {
		return nil, errors.New("settings of the pool: service_account is missing; GCE signs identities for machines " +
			"with a service account alone, and the provider demands an identity")
	}
	userData, err := cloudinit.Render(cloudinit.Machine{
		Name: l.Machine, Pool: l.Pool, Region: l.Offering.Region, Bootstrap: l.Bootstrap, Agent: s.Agent,
		Notices: "gce",
	})
	if err != nil {
		return nil, fmt.Errorf("user data: %w", err)
	}
	if len(userData) > maxUserData {
		return nil, fmt.Errorf("user data: %d bytes; GCE allows %d", len(userData), maxUserData)
	}
	return userData, nil
}

// labelsOf returns the labels of the pool's settings and those by which Berth finds its instances.
func labelsOf(l cloud.Launch, s Settings) map[string]string {
	labels := maps.Clone(s.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		labelCluster: label(l.Cluster), labelPool: label(l.Pool), labelMachine: label(string(l.Machine)),
	})
	return labels
}

// items returns the metadata of an instance, in a fixed order.
func items(l cloud.Launch, s Settings, userData string) *computepb.Metadata {
	all := maps.Clone(s.Metadata)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, map[string]string{
		itemCluster: l.Cluster, itemPool: l.Pool, itemMachine: string(l.Machine), itemN: strconv.Itoa(l.N),
		itemToken: l.Token, itemType: l.Offering.Type, itemHash: l.Hash(), itemUserData: userData,
	})
	m := &computepb.Metadata{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m.Items = append(m.Items, &computepb.Items{Key: proto.String(key), Value: proto.String(all[key])})
	}
	return m
}

// disks returns the boot disk, which ends with the instance.
func (s Settings) disks(o cloud.Offering, labels map[string]string) []*computepb.AttachedDisk {
	boot := &computepb.AttachedDiskInitializeParams{SourceImage: proto.String(s.Image), Labels: labels}
	if s.Disk != nil {
		boot.DiskSizeGb = proto.Int64(s.Disk.GiB)
		if s.Disk.Type != "" {
			boot.DiskType = proto.String("zones/" + o.Zone + "/diskTypes/" + s.Disk.Type)
		}
	}
	return []*computepb.AttachedDisk{{Boot: proto.Bool(true), AutoDelete: proto.Bool(true), InitializeParams: boot}}
}

// network returns the network interface. Without an access configuration it has no external address.
func (s Settings) network(o cloud.Offering) *computepb.NetworkInterface {
	n := &computepb.NetworkInterface{}
	if s.Network != "" {
		n.Network = proto.String(s.Network)
	}
	if name := s.Subnetworks[o.Region]; name != "" {
		n.Subnetwork = proto.String(name)
	}
	if s.ExternalIP {
		n.AccessConfigs = []*computepb.AccessConfig{{
			Name: proto.String("External NAT"), Type: proto.String("ONE_TO_ONE_NAT"),
		}}
	}
	return n
}

// scheduling returns the market of an instance and its behavior at maintenance of its host. GCE never
// restarts the instance: Berth starts none again either, and ends a stopped one.
func (s Settings) scheduling(o cloud.Offering, kind []string) *computepb.Scheduling {
	c := &computepb.Scheduling{
		ProvisioningModel: proto.String("STANDARD"), AutomaticRestart: proto.Bool(false),
		OnHostMaintenance: proto.String("MIGRATE"),
	}
	if o.Market == cloud.Spot || kind[2] != "" || gpuFamilies.MatchString(kind[1]) || s.StopForMaintenance {
		c.OnHostMaintenance = proto.String("TERMINATE") // GCE migrates no GPUs and no spot instances
	}
	if o.Market == cloud.Spot {
		c.ProvisioningModel = proto.String("SPOT")
		c.InstanceTerminationAction = proto.String("DELETE")
	}
	if s.MaxRunDuration > 0 {
		c.MaxRunDuration = &computepb.Duration{Seconds: proto.Int64(int64(s.MaxRunDuration.Std() / time.Second))}
		c.InstanceTerminationAction = proto.String("DELETE")
	}
	return c
}

// identity adds the service account. An instance without one has no credentials that a container could
// read.
func (s Settings) identity(i *computepb.Instance) {
	if s.ServiceAccount == "" {
		return
	}
	scopes := s.Scopes
	if len(scopes) == 0 {
		scopes = []string{"https://www.googleapis.com/auth/cloud-platform"}
	}
	i.ServiceAccounts = []*computepb.ServiceAccount{{Email: proto.String(s.ServiceAccount), Scopes: scopes}}
}

// found is an instance with the hash of its launch.
type found struct {
	cloud.Instance
	hash string
}

// is reports whether the instance belongs to this very launch.
func (f found) is(l cloud.Launch) bool { return f.Token == l.Token && f.hash == l.Hash() }

// read converts an instance. Metadata items that someone has removed are empty.
func read(i *computepb.Instance) (found, error) {
	tags := map[string]string{}
	for _, item := range i.GetMetadata().GetItems() {
		tags[item.GetKey()] = item.GetValue()
	}
	n, _ := strconv.Atoi(tags[itemN]) // 0 without the item
	at := place{zone: path.Base(i.GetZone()), name: i.GetName(), number: i.GetId()}
	f := found{hash: tags[itemHash], Instance: cloud.Instance{
		ID: at.String(), Token: tags[itemToken], Cluster: tags[itemCluster], Pool: tags[itemPool],
		Machine: berth.MachineID(tags[itemMachine]), N: n, Created: instant(i.GetCreationTimestamp()),
		Offering: cloud.Offering{
			Region: regionOf(at.zone), Zone: at.zone, Type: tags[itemType], Market: cloud.OnDemand,
		},
	}}
	if f.Offering.Type == "" {
		f.Offering.Type = path.Base(i.GetMachineType())
	}
	if i.GetScheduling().GetProvisioningModel() == "SPOT" {
		f.Offering.Market = cloud.Spot
	}
	if at.name == "" || at.number == 0 || f.Offering.Region == "" {
		return found{}, errors.New("an instance has no name, no number or no zone: " + f.ID)
	}
	state, ok := states[i.GetStatus()]
	if !ok {
		return found{}, fmt.Errorf("instance %s has status %q, which this version does not know", f.ID, i.GetStatus())
	}
	f.State = state
	if state == cloud.Ending {
		f.Reason = i.GetStatus()
	}
	return f, nil
}

// states are the statuses of GCE. TERMINATED is its word for a stopped instance, which exists, and whose
// disk costs money. A stopped instance never starts again: Berth starts none.
var states = map[string]cloud.State{
	"PENDING":        cloud.Pending,
	"PROVISIONING":   cloud.Pending,
	"STAGING":        cloud.Pending,
	"RUNNING":        cloud.Running,
	"REPAIRING":      cloud.Running,
	"PENDING_STOP":   cloud.Ending,
	"STOPPING":       cloud.Ending,
	"STOPPED":        cloud.Ending,
	"SUSPENDING":     cloud.Ending,
	"SUSPENDED":      cloud.Ending,
	"TERMINATED":     cloud.Ending,
	"DEPROVISIONING": cloud.Ending,
}

// instant reads a time of GCE, RFC 3339. Another text is the zero time.
func instant(text string) time.Time {
	t, _ := time.Parse(time.RFC3339, text)
	return t.UTC()
}
