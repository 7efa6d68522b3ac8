{{/* Variables of a container that uses the settings. */}}
{{- define "berthd.env" -}}
- name: BERTH_DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.database.existingSecret }}, key: {{ .Values.database.key }}}
- name: TEMPORAL_TLS
  value: {{ .Values.temporal.tls.enabled | quote }}
{{- if .Values.temporal.tls.enabled }}
{{- with .Values.temporal.tls.serverName }}
- name: TEMPORAL_TLS_SERVER_NAME
  value: {{ . | quote }}
{{- end }}
{{- if .Values.ca.existingSecret }}
- name: TEMPORAL_TLS_SERVER_CA_CERT_PATH
  value: /etc/berth/ca/ca.crt
{{- end }}
{{- if .Values.temporal.tls.existingSecret }}
- name: TEMPORAL_TLS_CLIENT_CERT_PATH
  value: /etc/berth/temporal/tls.crt
- name: TEMPORAL_TLS_CLIENT_KEY_PATH
  value: /etc/berth/temporal/tls.key
{{- end }}
{{- end }}
{{- if .Values.ca.existingSecret }}
# In addition to the file of public authorities, which the image has.
- name: SSL_CERT_DIR
  value: /etc/berth/ca
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "berthd.mounts" -}}
- {name: settings, mountPath: /etc/berth/berthd.yaml, subPath: berthd.yaml, readOnly: true}
- {name: keys, mountPath: /etc/berth/keys, readOnly: true}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/berth/tls, readOnly: true}
{{- end }}
{{- if .Values.temporal.tls.existingSecret }}
- {name: temporal, mountPath: /etc/berth/temporal, readOnly: true}
{{- end }}
{{- if .Values.ca.existingSecret }}
- {name: ca, mountPath: /etc/berth/ca, readOnly: true}
{{- end }}
{{- if .Values.adminToken.existingSecret }}
- {name: admin, mountPath: /etc/berth/admin, readOnly: true}
{{- end }}
- {name: home, mountPath: /var/lib/berth}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "berthd.volumes" -}}
- name: settings
  configMap: {name: {{ include "berthd.name" . }}}
- name: keys
  secret:
    secretName: {{ .Values.secretKeys.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.secretKeys.key }}, path: secret-keys}]
{{- if .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- if .Values.temporal.tls.existingSecret }}
- name: temporal
  secret: {secretName: {{ .Values.temporal.tls.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- if .Values.ca.existingSecret }}
- name: ca
  secret:
    secretName: {{ .Values.ca.existingSecret }}
    defaultMode: 0444
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- if .Values.adminToken.existingSecret }}
- name: admin
  secret:
    secretName: {{ .Values.adminToken.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.adminToken.key }}, path: token}]
{{- end }}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- end -}}
