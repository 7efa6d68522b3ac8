package ec2

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudinit"
)

// The tags of instances and their volumes. They are part of the request that creates the
// instance: an instance without them cannot exist, not even for a moment.
const (
	tagName    = "Name"
	tagCluster = "berth:cluster"
	tagPool    = "berth:pool"
	tagMachine = "berth:machine"
	tagN       = "berth:launch"
	tagToken   = "berth:token"
	// tagHash is the hash of the launch, by which Create recognizes an instance of the same launch
	// whose request was built by another version of Berth.
	tagHash = "berth:hash"
)

// maxUserData is the limit of EC2 for user data, in bytes before the encoding.
const maxUserData = 16 << 10

// errNoImage reports settings that have no image for the region of a launch.
var errNoImage = errors.New("images has no entry for region")

// request builds the request of a launch. The result depends only on the launch. Two builds of one
// launch must give equal bytes: EC2 refuses the token with other parameters.
func request(l cloud.Launch) (*ec2.RunInstancesInput, error) {
	s, err := ParseSettings(l.Settings)
	if err != nil {
		return nil, err
	}
	o := l.Offering
	image := s.Images[o.Region]
	if image == "" {
		return nil, fmt.Errorf("settings of the pool: %w %s", errNoImage, o.Region)
	}
	// Tokens hold for a zone. If EC2 chose the zone of each call, a repeat could create a second instance.
	if o.Zone == "" && s.Subnets[o.Region] == "" {
		return nil, fmt.Errorf("the offering has no zone, and subnets has no entry for region %s: name one of them, "+
			"since EC2 would choose a zone for each call", o.Region)
	}
	userData, err := cloudinit.Render(cloudinit.Machine{
		Name: l.Machine, Pool: l.Pool, Region: o.Region, Bootstrap: l.Bootstrap, Agent: s.Agent,
		Notices: "ec2",
	})
	if err != nil {
		return nil, fmt.Errorf("user data: %w", err)
	}
	if len(userData) > maxUserData {
		return nil, fmt.Errorf("user data: %d bytes; EC2 allows %d", len(userData), maxUserData)
	}
	tags := tagsOf(l, s.Tags)
	r := &ec2.RunInstancesInput{
		ClientToken: aws.String(l.Token), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		ImageId: aws.String(image), InstanceType: types.InstanceType(o.Type),
		UserData:         aws.String(base64.StdEncoding.EncodeToString(userData)),
		SecurityGroupIds: s.SecurityGroups[o.Region],
		// A machine that shuts itself down must not stay as a stopped instance, whose disk costs money.
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		// Containers are one hop further away, and cannot read the user data.
		MetadataOptions: &types.InstanceMetadataOptionsRequest{
			HttpEndpoint: types.InstanceMetadataEndpointStateEnabled, HttpTokens: types.HttpTokensStateRequired,
			HttpPutResponseHopLimit: aws.Int32(1),
		},
		TagSpecifications: []types.TagSpecification{
			{ResourceType: types.ResourceTypeInstance, Tags: tags},
			{ResourceType: types.ResourceTypeVolume, Tags: tags},
		},
	}
	s.options(r, o)
	return r, nil
}

// options adds the parts of a request that not every pool has. The subnet of the zone takes precedence
// over the one of the region.
func (s Settings) options(r *ec2.RunInstancesInput, o cloud.Offering) {
	if o.Zone != "" {
		r.Placement = &types.Placement{AvailabilityZone: aws.String(o.Zone)}
	}
	subnet := s.Subnets[o.Zone]
	if subnet == "" {
		subnet = s.Subnets[o.Region]
	}
	if subnet != "" {
		r.SubnetId = aws.String(subnet)
	}
	if s.KeyName != "" {
		r.KeyName = aws.String(s.KeyName)
	}
	if s.InstanceProfile != "" {
		r.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String(s.InstanceProfile)}
	}
	// The disk ends with the instance, since nothing on it outlives a machine.
	if s.RootDisk != nil {
		r.BlockDeviceMappings = []types.BlockDeviceMapping{{
			DeviceName: aws.String(s.RootDisk.Device),
			Ebs: &types.EbsBlockDevice{
				VolumeSize: aws.Int32(s.RootDisk.GiB), VolumeType: types.VolumeTypeGp3,
				DeleteOnTermination: aws.Bool(true),
			},
		}}
	}
	if o.Market == cloud.Spot { // without a highest price: that of on-demand instances
		r.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{
			MarketType: types.MarketTypeSpot,
			SpotOptions: &types.SpotMarketOptions{
				SpotInstanceType:             types.SpotInstanceTypeOneTime,
				InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate,
			},
		}
	}
}

// tagsOf returns the tags of a launch, in a fixed order. Berth's own tags replace tags of the settings
// with the same key.
func tagsOf(l cloud.Launch, more map[string]string) []types.Tag {
	all := maps.Clone(more)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, map[string]string{
		tagName: string(l.Machine), tagCluster: l.Cluster, tagPool: l.Pool, tagMachine: string(l.Machine),
		tagN: strconv.Itoa(l.N), tagToken: l.Token, tagHash: l.Hash(),
	})
	tags := make([]types.Tag, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		tags = append(tags, types.Tag{Key: aws.String(key), Value: aws.String(all[key])})
	}
	return tags
}

// found is an instance with the hash of its launch.
type found struct {
	cloud.Instance
	hash string
}

// read converts an instance. Tags that someone has removed are empty; the token is that of the
// request, which never changes.
func read(region string, i types.Instance) (found, error) {
	tags := map[string]string{}
	for _, t := range i.Tags {
		tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	n, _ := strconv.Atoi(tags[tagN]) // 0 without the tag
	f := found{hash: tags[tagHash], Instance: cloud.Instance{
		ID: aws.ToString(i.InstanceId), Token: aws.ToString(i.ClientToken), Cluster: tags[tagCluster],
		Pool: tags[tagPool], Machine: berth.MachineID(tags[tagMachine]), N: n, Created: aws.ToTime(i.LaunchTime),
		Offering: cloud.Offering{Region: region, Type: string(i.InstanceType), Market: cloud.OnDemand},
	}}
	if i.Placement != nil {
		f.Offering.Zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	if i.InstanceLifecycle == types.InstanceLifecycleTypeSpot {
		f.Offering.Market = cloud.Spot
	}
	if i.StateReason != nil {
		f.Reason = aws.ToString(i.StateReason.Code)
	}
	if f.ID == "" || i.State == nil {
		return found{}, fmt.Errorf("instance %q has no id or no state", f.ID)
	}
	state, ok := states[i.State.Name]
	if !ok {
		return found{}, fmt.Errorf("instance %s has state %q, which this version does not know", f.ID, i.State.Name)
	}
	f.State = state
	return f, nil
}

// states are the states of EC2. A stopped instance never starts again: Berth starts none.
var states = map[types.InstanceStateName]cloud.State{
	types.InstanceStateNamePending:      cloud.Pending,
	types.InstanceStateNameRunning:      cloud.Running,
	types.InstanceStateNameShuttingDown: cloud.Ending,
	types.InstanceStateNameStopping:     cloud.Ending,
	types.InstanceStateNameStopped:      cloud.Ending,
	types.InstanceStateNameTerminated:   cloud.Terminated,
}
