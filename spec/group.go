package spec

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// MaxGroups bounds the groups of a gang.
const MaxGroups = 16

// The variables of a member of a gang with groups. Other jobs do not have them.
const (
	EnvGroup        = "BERTH_GROUP"         // name of the member's group
	EnvGroupMember  = "BERTH_GROUP_MEMBER"  // number of the member in its group, from 0
	EnvGroupMembers = "BERTH_GROUP_MEMBERS" // number of members of the group
	EnvGroups       = "BERTH_GROUPS"        // all groups in order, as NAME=MEMBERS,NAME=MEMBERS
)

// Group is a group of equal members in a gang of unlike members. The groups of a job number its members
// in their order: the first group has the members from 0 on.
type Group struct {
	Name       string            `json:"name" doc:"name of the group, each once"`
	Members    int               `json:"members,omitempty" zero:"1 to 512; default 1" doc:"members of the group"`
	Leads      bool              `json:"leads,omitempty" doc:"the job ends, with their result, when these members end"`
	Resources  GroupResources    `json:"resources,omitzero" doc:"resources of each member; default: those of the job"`
	Entrypoint []string          `json:"entrypoint,omitempty" doc:"overrides the image's; default: the job's"`
	Command    []string          `json:"command,omitempty" doc:"command, passed without a shell; default: the job's"`
	Env        map[string]string `json:"env,omitempty" doc:"variables of the containers, in addition to the job's"`
}

// GroupResources are the resources in which the members of a group differ from the job's resources. A
// field that is left out has the value of the job's resources.
type GroupResources struct {
	CPUs      *MilliCPU   `json:"cpus,omitempty" doc:"cores, such as 0.5"`
	Memory    *MiB        `json:"memory,omitempty" doc:"memory limit: 4GiB, 512MiB or bytes"`
	Disk      *MiB        `json:"disk,omitempty" doc:"disk space, reserved and enforced; 0: no limit"`
	ShmSize   *MiB        `json:"shm_size,omitempty" doc:"size of /dev/shm; 0: the engine's default"`
	GPUs      *MilliGPU   `json:"gpus,omitempty" doc:"a whole number, or a share of one GPU such as 0.25"`
	GPUType   *StringList `json:"gpu_type,omitempty" doc:"any of these models; []: any model"`
	GPUMemory *MiB        `json:"gpu_memory,omitempty" doc:"minimum memory of each GPU; 0: any"`
}

// GroupOf returns the group of a member, and the number of the member in it. ok is false for a job without
// groups, and for a number that no member has. The spec must have its defaults filled in.
func GroupOf(s Job, member int) (g Group, number int, ok bool) {
	for _, g := range s.Groups {
		if member < g.Members {
			return g, member, member >= 0
		}
		member -= g.Members
	}
	return Group{}, 0, false
}

// Leading returns the numbers of the first and the last member of the group that leads; ok is false
// without such a group. The spec must have its defaults filled in.
func Leading(s Job) (first, last int, ok bool) {
	for _, g := range s.Groups {
		if g.Leads {
			return first, first + g.Members - 1, true
		}
		first += g.Members
	}
	return 0, 0, false
}

// MemberResources returns the resources of the members of a group.
func MemberResources(s Job, g Group) Resources {
	r := Alternative{CPUs: g.Resources.CPUs, Memory: g.Resources.Memory, Disk: g.Resources.Disk,
		ShmSize: g.Resources.ShmSize, GPUs: g.Resources.GPUs, GPUType: g.Resources.GPUType,
		GPUMemory: g.Resources.GPUMemory}
	return r.resources(s.Resources)
}

// Layout returns the names and sizes of the groups in order, as NAME=MEMBERS,NAME=MEMBERS; "" without
// groups. Two gangs with one layout have the same members by number.
func Layout(s Job) string {
	all := make([]string, len(s.Groups))
	for i, g := range s.Groups {
		all[i] = fmt.Sprintf("%s=%d", g.Name, g.Members)
	}
	return strings.Join(all, ",")
}

// ChooseMember returns the spec of a job for one of its members, as if the file had no groups: with the
// resources, the command and the variables of the member's group. Members stays the number of all members.
// A job without groups stays as it is. The spec must have its defaults filled in.
func ChooseMember(s Job, member int) Job {
	g, number, ok := GroupOf(s, member)
	if !ok {
		return s
	}
	if len(g.Entrypoint) > 0 {
		s.Entrypoint = g.Entrypoint
	}
	if len(g.Command) > 0 {
		s.Command = g.Command
	}
	env := make(map[string]string, len(s.Env)+len(g.Env)+4)
	maps.Copy(env, s.Env)
	maps.Copy(env, g.Env)
	env[EnvGroup], env[EnvGroups] = g.Name, Layout(s)
	env[EnvGroupMember], env[EnvGroupMembers] = strconv.Itoa(number), strconv.Itoa(g.Members)
	s.Resources, s.Env, s.Groups = MemberResources(s, g), env, nil
	return s
}

// withGroupDefaults fills in the number of members of each group, and of the job.
func withGroupDefaults(s Job) Job {
	if len(s.Groups) == 0 {
		return s
	}
	groups, sum := make([]Group, len(s.Groups)), 0 // a copy: the caller's spec stays as it is
	for i, g := range s.Groups {
		if g.Members == 0 {
			g.Members = 1
		}
		groups[i], sum = g, sum+g.Members
	}
	s.Groups = groups
	if s.Members == 0 {
		s.Members = sum
	}
	return s
}

// Resized returns a changed copy of an earlier job's stored spec without the number of all members, which Berth
// had filled in: the groups may have other sizes now. Any other number is the user's, and is checked.
func Resized(changed, earlier Job) Job {
	if len(changed.Groups) > 0 && len(earlier.Groups) > 0 && changed.Members == earlier.Members {
		changed.Members = 0
	}
	return changed
}

// ResizedSteps is Resized for the steps of a pipeline at all levels. It does not change its arguments.
func ResizedSteps(changed, earlier map[string]Job) map[string]Job {
	steps := make(map[string]Job, len(changed))
	for name, step := range changed {
		if old, ok := earlier[name]; ok {
			step = Resized(step, old)
			if step.Jobs != nil {
				step.Jobs = ResizedSteps(step.Jobs, old.Jobs)
			}
		}
		steps[name] = step
	}
	return steps
}

// groupRequests returns the placement requests of the groups.
func groupRequests(s Job) []GroupRequest {
	list := make([]GroupRequest, len(s.Groups))
	for i, g := range s.Groups {
		one := s
		one.Groups, one.Resources = nil, MemberResources(s, g)
		r := one.Request()
		list[i] = GroupRequest{Name: g.Name, Members: g.Members, CPUMilli: r.CPUMilli, MemoryMiB: r.MemoryMiB,
			DiskMiB: r.DiskMiB, GPUs: r.GPUs, GPUMilli: r.GPUMilli, GPUTypes: r.GPUTypes, GPUMemoryMiB: r.GPUMemoryMiB}
	}
	return list
}

// validateGroups checks the groups of a job, each with the resources that its members get.
func validateGroups(v *validation, s Job) {
	if len(s.Groups) == 0 {
		return
	}
	v.require(len(s.Groups) >= 2, "groups", "has one group", "2 groups or more; for equal members use members")
	v.require(len(s.Groups) <= MaxGroups, "groups", "too many groups", fmt.Sprintf("at most %d", MaxGroups))
	v.require(len(s.Alternatives) == 0, "alternatives", "cannot be combined with groups",
		"leave out either alternatives or groups")
	sum, leader := 0, ""
	named := map[string]bool{}
	taken, most := takenVariables(s)
	for i, g := range s.Groups {
		at := fmt.Sprintf("groups[%d]", i)
		v.name(at+".name", g.Name)
		v.require(!named[g.Name], at+".name", fmt.Sprintf("%q is the name of an earlier group", g.Name),
			"each name once")
		named[g.Name] = true
		v.require(g.Members >= 1 && g.Members <= MaxMembers, at+".members",
			fmt.Sprintf("%d is out of range", g.Members), fmt.Sprintf("1 to %d", MaxMembers))
		sum += g.Members
		v.require(!g.Leads || leader == "", at+".leads", fmt.Sprintf("group %s leads already", leader),
			"one group that leads")
		if g.Leads {
			leader = g.Name
		}
		validateMember(v, s, g, at)
		validateGroupEnv(v, s, g, at, taken, most)
	}
	v.require(sum <= MaxMembers, "groups", fmt.Sprintf("have %d members", sum), fmt.Sprintf("at most %d", MaxMembers))
	v.require(s.Members == sum, "members", fmt.Sprintf("is %d, and the groups have %d members", s.Members, sum),
		"leave it out: each group has its own number")
}

// validateMember checks the container of the members of a group.
func validateMember(v *validation, s Job, g Group, at string) {
	r := MemberResources(s, g)
	r.validate(v, at+".resources")
	v.require(s.Stall == nil || !s.Stall.Counts(SignGPU) || r.GPUs > 0, "stall.signs",
		fmt.Sprintf("lists gpu, but %s has no GPUs", at), "GPUs in each group, or leave gpu out")
	v.require(len(g.Command)+len(g.Entrypoint) <= maxCommandArgs, at+".command", "too many arguments",
		fmt.Sprintf("at most %d", maxCommandArgs))
	v.arguments(at+".entrypoint", g.Entrypoint)
	v.arguments(at+".command", g.Command)
}

// takenVariables returns the variables that no group may set, each with the field that sets it, and the highest
// number of variables that an element adds. An element or a secret would lose its value without a notice, since the
// variables of a group are applied last.
func takenVariables(s Job) (taken map[string]string, most int) {
	taken = map[string]string{}
	if s.Array != nil {
		for _, vars := range s.Array.Each {
			for name := range vars {
				taken[name] = "array.each"
			}
			most = max(most, len(vars))
		}
		most += arrayVariables
	}
	if s.SecretsAs != SecretsFile {
		for _, name := range s.Secrets {
			taken[name] = "secrets"
		}
	}
	return taken, most
}

// validateGroupEnv checks the variables of a group together with the variables of the job and of an array's elements.
func validateGroupEnv(v *validation, s Job, g Group, at string, taken map[string]string, most int) {
	v.require(len(s.Env)+len(g.Env)+most <= maxEnv, at+".env", "too many variables",
		fmt.Sprintf("at most %d, with those of the job and of an element", maxEnv))
	for _, k := range sortedKeys(g.Env) {
		field := at + ".env." + k
		v.variable(field, k, g.Env[k])
		by, also := taken[k]
		v.require(!also, field, "is also set by "+by, "only one of the two")
	}
}

// requireGroups checks the variables of one entry of a list against the variables of the groups.
func (v *validation) requireGroups(s Job, vars map[string]string) {
	for _, g := range s.Groups {
		for _, k := range sortedKeys(vars) {
			_, also := g.Env[k]
			v.require(!also, fmt.Sprintf("%.100q", k), fmt.Sprintf("is also set by group %s", g.Name), "")
		}
		v.require(len(s.Env)+len(g.Env)+len(vars) <= maxEnv-arrayVariables, "it", "has too many variables", "")
	}
}
