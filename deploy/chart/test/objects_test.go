package charttest

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// objects are the decoded objects of one rendering.
type objects struct {
	accounts    []corev1.ServiceAccount
	settings    []corev1.ConfigMap
	deployments []appsv1.Deployment
	services    []corev1.Service
	budgets     []policyv1.PodDisruptionBudget
	policies    []networkingv1.NetworkPolicy
	checks      []batchv1.CronJob
	monitors    []monitoringv1.ServiceMonitor
	rules       []monitoringv1.PrometheusRule
}

// decode decodes a rendering. A field that its type does not have is an error, as is an object of another kind: the
// chart creates no secrets and no rights.
func decode(t *testing.T, text string) (o objects) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 ServiceAccount":
			o.accounts = append(o.accounts, strict[corev1.ServiceAccount](t, document))
		case "v1 ConfigMap":
			o.settings = append(o.settings, strict[corev1.ConfigMap](t, document))
		case "apps/v1 Deployment":
			o.deployments = append(o.deployments, strict[appsv1.Deployment](t, document))
		case "v1 Service":
			o.services = append(o.services, strict[corev1.Service](t, document))
		case "policy/v1 PodDisruptionBudget":
			o.budgets = append(o.budgets, strict[policyv1.PodDisruptionBudget](t, document))
		case "networking.k8s.io/v1 NetworkPolicy":
			o.policies = append(o.policies, strict[networkingv1.NetworkPolicy](t, document))
		case "batch/v1 CronJob":
			o.checks = append(o.checks, strict[batchv1.CronJob](t, document))
		case "monitoring.coreos.com/v1 ServiceMonitor":
			o.monitors = append(o.monitors, strict[monitoringv1.ServiceMonitor](t, document))
		case "monitoring.coreos.com/v1 PrometheusRule":
			o.rules = append(o.rules, strict[monitoringv1.PrometheusRule](t, document))
		default:
			t.Errorf("the chart creates an object %q\n%s", kind, document)
		}
	}
	return o
}

func strict[T any](t *testing.T, document string) (object T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Errorf("%v\n%s", err, document)
	}
	return object
}

func TestObjectsAreWhatKubernetesKnows(t *testing.T) {
	c := load(t)
	for name, v := range values(t) {
		text, err := render(c, v)
		if err != nil {
			t.Fatal(err)
		}
		o := decode(t, text)
		if len(o.deployments) != 1 || len(o.services) != 1 || len(o.settings) != 1 {
			t.Fatalf("%s renders %d deployments, %d services and %d files of settings", name, len(o.deployments),
				len(o.services), len(o.settings))
		}
		pods := map[string]corev1.PodTemplateSpec{"replicas": o.deployments[0].Spec.Template}
		for _, check := range o.checks {
			pods["check"] = check.Spec.JobTemplate.Spec.Template
		}
		for pod, p := range pods {
			t.Run(name+" "+pod, func(t *testing.T) {
				wantRestricted(t, p.Spec)
				wantMounts(t, p.Spec)
			})
		}
		wantSelected(t, name, o, pods)
		for _, r := range o.rules {
			wantRules(t, r)
		}
	}
}

// wantRules checks that an object has the alerting rules of deploy/prometheus, all and unchanged.
func wantRules(t *testing.T, r monitoringv1.PrometheusRule) {
	t.Helper()
	b, err := os.ReadFile("../../prometheus/berth.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := strict[monitoringv1.PrometheusRuleSpec](t, string(b))
	if len(want.Groups) == 0 || !reflect.DeepEqual(r.Spec, want) {
		t.Errorf("the object has %d groups of rules, the file %d; they differ", len(r.Spec.Groups), len(want.Groups))
	}
}

// wantRestricted holds a pod to the Pod Security Standard "restricted", and to no token of the API of Kubernetes.
func wantRestricted(t *testing.T, p corev1.PodSpec) {
	t.Helper()
	s := p.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser != 65532 ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the security of the pod is %+v", s)
	}
	if p.HostNetwork || p.HostPID || p.HostIPC || len(p.InitContainers) != 0 {
		t.Errorf("the pod shares a namespace of the host, or has containers that no test reads: %+v", p)
	}
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Error("the pod gets a token of the service account")
	}
	for _, c := range p.Containers {
		s := c.SecurityContext
		if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Privileged != nil ||
			s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil ||
			len(s.Capabilities.Add) != 0 || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("the security of container %s is %+v", c.Name, s)
		}
	}
	for _, v := range p.Volumes {
		if v.Secret == nil && v.ConfigMap == nil && v.EmptyDir == nil {
			t.Errorf("volume %s is of another kind than the standard allows here", v.Name)
		}
	}
}

// wantMounts checks that mounts and volumes belong together, and that probes name a port of the container.
func wantMounts(t *testing.T, p corev1.PodSpec) {
	t.Helper()
	mounted := map[string]bool{}
	for _, c := range p.Containers {
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
			if !slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("container %s mounts %s, which is no volume", c.Name, m.Name)
			}
		}
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
				return p.Name == probe.HTTPGet.Port.StrVal
			}) {
				t.Errorf("a probe of container %s asks port %s", c.Name, probe.HTTPGet.Port.StrVal)
			}
		}
	}
	for _, v := range p.Volumes {
		if !mounted[v.Name] {
			t.Errorf("no container mounts volume %s", v.Name)
		}
		// The group of the pod reads the files; a mode in another notation than YAML's octal one would be another number.
		if v.Secret != nil && (v.Secret.DefaultMode == nil || *v.Secret.DefaultMode|0o004 != 0o444) {
			t.Errorf("the files of volume %s have the mode %v", v.Name, v.Secret.DefaultMode)
		}
	}
}

// wantSelected checks that the service, the budget and the deployment mean the replicas alone, and the policy all pods.
func wantSelected(t *testing.T, name string, o objects, pods map[string]corev1.PodTemplateSpec) {
	t.Helper()
	means := func(part string, selector map[string]string, all bool) {
		t.Helper()
		for pod, p := range pods {
			want := all || pod == "replicas"
			if len(selector) == 0 || labels.SelectorFromSet(selector).Matches(labels.Set(p.Labels)) != want {
				t.Errorf("%s: %s means the pod of %s: %v, want %v (%v)", name, part, pod, !want, want, selector)
			}
		}
	}
	means("the service", o.services[0].Spec.Selector, false)
	means("the deployment", o.deployments[0].Spec.Selector.MatchLabels, false)
	for _, b := range o.budgets {
		means("the budget", b.Spec.Selector.MatchLabels, false)
	}
	for _, p := range o.policies {
		means("the policy", p.Spec.PodSelector.MatchLabels, true)
	}
	for _, s := range o.deployments[0].Spec.Template.Spec.TopologySpreadConstraints {
		means("the spread", s.LabelSelector.MatchLabels, false)
	}
	for _, m := range o.monitors {
		if !labels.SelectorFromSet(m.Spec.Selector.MatchLabels).Matches(labels.Set(o.services[0].Labels)) {
			t.Errorf("%s: the monitor does not mean the service", name)
		}
	}
}
