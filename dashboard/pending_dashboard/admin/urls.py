# SPDX-License-Identifier: Apache-2.0

from django.urls import re_path

from pending_dashboard.admin import views

urlpatterns = [
    re_path(r'^$', views.IndexView.as_view(), name='index'),
    re_path(r'^(?P<server_id>[^/]+)/rebuild$', views.RebuildView.as_view(),
            name='rebuild'),
    re_path(r'^pause$', views.PauseView.as_view(), name='pause'),
    re_path(r'^resume$', views.ResumeView.as_view(), name='resume'),
]
