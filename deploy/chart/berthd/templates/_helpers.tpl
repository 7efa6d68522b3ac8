{{/* Name of the objects of a release. */}}
{{- define "berthd.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "berthd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the replicas: the selector and the component, which jobs of the chart do not have. */}}
{{- define "berthd.replicas" -}}
{{ include "berthd.selector" . }}
app.kubernetes.io/component: control-plane
{{- end -}}

{{- define "berthd.labels" -}}
{{ include "berthd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "berthd.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "berthd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "berthd.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "berthd.scheme" -}}
{{ if .Values.tls.existingSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}

{{/* Security of a container by the Pod Security Standard "restricted". */}}
{{- define "berthd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "berthd.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Faults that the schema cannot express. */}}
{{- define "berthd.check" -}}
{{- if not (or .Values.tls.existingSecret .Values.allowPlaintext) -}}
{{- fail "tls.existingSecret is required: the API is reached from other hosts. allowPlaintext: true starts it without TLS" -}}
{{- end -}}
{{- if not (or .Values.temporal.tls.enabled .Values.allowPlaintext) -}}
{{- fail "temporal.tls.enabled is false: allowPlaintext: true is needed for a Temporal without TLS" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.existingSecret) -}}
{{- fail "serviceMonitor.existingSecret is required: GET /metrics needs a token of the role metrics" -}}
{{- end -}}
{{- end -}}
